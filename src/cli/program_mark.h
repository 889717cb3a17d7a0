// SPDX-License-Identifier: Apache-2.0
// `--` between the options of `launch` and its program.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace accelerate {

/// Stands for the first `--` of a command line while CLI11 looks at it, which
/// would give what follows to the parent command.
inline constexpr const char* kProgramMark = "\x01--";

/// Puts the mark in; call it on the command line before it is parsed.
inline void mark_program(std::vector<std::string>& arguments) {
  const auto found = std::find(arguments.begin(), arguments.end(), "--");
  if (found != arguments.end()) {
    *found = kProgramMark;
  }
}

/// Takes it out of a program and its arguments: `--` before them is not
/// theirs, any other is.
inline void unmark_program(std::vector<std::string>& program) {
  if (!program.empty() && program[0] == kProgramMark) {
    program.erase(program.begin());
  }
  std::replace(
      program.begin(),
      program.end(),
      std::string(kProgramMark),
      std::string("--"));
}

} // namespace accelerate
