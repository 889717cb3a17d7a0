// SPDX-License-Identifier: Apache-2.0
// Marks arguments that CLI11 would misinterpret, while it parses a command
// line.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace accelerate {

/// Replaces the first `--` of a command line while CLI11 parses it. Without the
/// mark, the arguments after it would go to the parent command.
inline constexpr const char* kProgramMark = "\x01--";

/// Appended to `--option=`. Without the mark, CLI11 would use the next argument
/// as the value.
inline constexpr const char* kEmptyMark = "\x01 empty";

/// Inserts the marks. Call it with the command line before parsing.
inline void mark_arguments(std::vector<std::string>& arguments) {
  const auto found = std::find(arguments.begin(), arguments.end(), "--");
  if (found != arguments.end()) {
    *found = kProgramMark;
  }
  for (std::string& argument : arguments) {
    if (argument.starts_with("--") &&
        argument.find('=') == argument.size() - 1) {
      argument += kEmptyMark;
    }
  }
}

/// A value of an option, or an argument of a program, as it was given.
inline std::string unmarked(const std::string& text) {
  if (text == kProgramMark) {
    return "--";
  }
  return text.ends_with(kEmptyMark)
             ? text.substr(0, text.size() - std::string(kEmptyMark).size())
             : text;
}

/// Removes the marks and a leading `--` from a program and its arguments. A
/// later `--` belongs to the program. Returns whether there was a leading one.
inline bool unmark_program(std::vector<std::string>& program) {
  const bool is_marked = !program.empty() && program[0] == kProgramMark;
  if (is_marked) {
    program.erase(program.begin());
  }
  std::transform(program.begin(), program.end(), program.begin(), unmarked);
  return is_marked;
}

} // namespace accelerate
