// SPDX-License-Identifier: Apache-2.0
// The commands of the `accelerate` program, one file each.
#pragma once

#include <string>
#include <vector>

#include "core/base/exit_codes.h"
#include "core/base/internal.h"
#include "core/config/launch_config.h"

namespace CLI {
class App;
}

namespace accelerate {

/// Runs `program` with the flags of `launch`, and returns the exit code.
/// `SessionOptions` describes `parent_folder`.
ACCELERATE_INTERNAL int launch(
    const ConfigLayer& flags,
    const std::vector<std::string>& program,
    const std::string& parent_folder = {});

/// Runs `accelerate` without a command: describes this machine and suggests
/// commands to try.
ACCELERATE_INTERNAL void print_overview();

/// Adds a command to `app`. Parsing it runs it and sets `exit_code`, the exit
/// code of the program, which is 0 by default.
using AddCommand = void (*)(CLI::App& app, int& exit_code);

/// Adds `config` with `default`, `update` and `show`.
ACCELERATE_INTERNAL void add_config_command(CLI::App& app, int& exit_code);
/// Adds `launch`, whose exit code is that of the workers.
ACCELERATE_INTERNAL void add_launch_command(CLI::App& app, int& exit_code);
/// Adds `new`: creates a project that trains.
ACCELERATE_INTERNAL void add_new_command(CLI::App& app, int& exit_code);
/// Adds `estimate-memory`: estimates the memory that a model needs.
ACCELERATE_INTERNAL void add_estimate_memory_command(
    CLI::App& app,
    int& exit_code);
/// Adds `merge-weights`: merges several files into one.
ACCELERATE_INTERNAL void add_merge_weights_command(
    CLI::App& app,
    int& exit_code);
/// Adds `env`: prints what a bug report needs.
ACCELERATE_INTERNAL void add_env_command(CLI::App& app, int& exit_code);
/// Adds `test`: runs the self-check through the launcher.
ACCELERATE_INTERNAL void add_test_command(CLI::App& app, int& exit_code);
/// Adds `doctor`: finds problems before a launch, and where a job hangs.
ACCELERATE_INTERNAL void add_doctor_command(CLI::App& app, int& exit_code);
/// Adds `watch`: shows runs in the browser.
ACCELERATE_INTERNAL void add_watch_command(CLI::App& app, int& exit_code);
/// Adds `completion`. It describes the commands that `app` has when it runs.
ACCELERATE_INTERNAL void add_completion_command(CLI::App& app, int& exit_code);

/// Adds `verify`: compares the steps of several processes with those of one.
ACCELERATE_INTERNAL void add_verify_command(CLI::App& app, int& exit_code);

/// The commands in the order of `--help`.
inline constexpr AddCommand kCommands[] = {
    add_launch_command,
    add_new_command,
    add_config_command,
    add_test_command,
    add_verify_command,
    add_watch_command,
    add_doctor_command,
    add_env_command,
    add_estimate_memory_command,
    add_merge_weights_command,
    add_completion_command,
};

} // namespace accelerate
