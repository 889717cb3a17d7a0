// SPDX-License-Identifier: Apache-2.0
// The layout of `--help`, and explanations of wrong arguments.
#pragma once

#include <string>
#include <vector>

#include "core/base/internal.h"

namespace CLI {
class App;
class ParseError;
class Validator;
} // namespace CLI

namespace accelerate {

/// Headings of the commands in `accelerate --help`, in order.
inline constexpr const char* kTrainCommands = "Train";
inline constexpr const char* kInspectCommands = "Inspect";
inline constexpr const char* kModelCommands = "Models and checkpoints";
inline constexpr const char* kShellCommands = "Shell";

/// Gives `app` and commands added afterwards a help of 80 columns, coloured on
/// a terminal unless NO_COLOR is set. `--help-all` also shows options without
/// effect, and the launch options of commands that share them.
ACCELERATE_INTERNAL void use_readable_help(CLI::App& app);

/// One line for the user about a command line that `command` cannot parse.
ACCELERATE_INTERNAL std::string explain_parse_error(
    const CLI::ParseError& error,
    const CLI::App& command);

/// Checks of option values. Their errors say which values are valid.
CLI::Validator whole_number_from(int least, int most);
CLI::Validator one_of(std::vector<std::string> words);

} // namespace accelerate
