// SPDX-License-Identifier: Apache-2.0
// Finding and running programs.
#pragma once

#include <filesystem>
#include <string>

#include "core/base/internal.h"

namespace accelerate {

/// The path of this program. Empty if /proc is not mounted.
ACCELERATE_INTERNAL std::filesystem::path own_program();

/// The self-check next to this program. In a Python package, it is a Python
/// script. It is missing in builds without the training library.
ACCELERATE_INTERNAL std::filesystem::path selftest_program();

/// Whether the file starts with `#!`.
ACCELERATE_INTERNAL bool is_script(const std::filesystem::path& file);

/// The interpreter of a script that pip wrote. Empty if the file is not one, or
/// if the interpreter is gone.
ACCELERATE_INTERNAL std::filesystem::path interpreter_of(
    const std::filesystem::path& script);

/// The path that execvp(3) runs for `program`. Empty if there is none.
ACCELERATE_INTERNAL std::string find_program(const std::string& program);

/// The standard output of a shell command. Empty if it cannot start.
ACCELERATE_INTERNAL std::string output_of(const std::string& command);

} // namespace accelerate
