// SPDX-License-Identifier: Apache-2.0
// Finding and running programs.
#pragma once

#include <filesystem>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// The path of this program; empty if /proc is not mounted.
ACCELERATE_API std::filesystem::path own_program();

/// The path that execvp(3) runs for `program`; empty if there is none.
ACCELERATE_API std::string find_program(const std::string& program);

/// The standard output of a shell command; empty if it cannot start.
ACCELERATE_API std::string output_of(const std::string& command);

} // namespace accelerate
