// SPDX-License-Identifier: Apache-2.0
// Programs: this one, and others of this machine with what they print.
#pragma once

#include <filesystem>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// The path of this program; empty if /proc is not mounted.
ACCELERATE_API std::filesystem::path own_program();

/// The path that execvp(3) runs for `program`; empty if there is none.
ACCELERATE_API std::string find_program(const std::string& program);

/// What a shell command prints on standard output; empty if it cannot start.
ACCELERATE_API std::string output_of(const std::string& command);

} // namespace accelerate
