// SPDX-License-Identifier: Apache-2.0
// The commands of the program `accelerate`, one file each.
#pragma once

#include <string>
#include <vector>

#include "accelerate/export.h"
#include "config/launch_config.h"

namespace CLI {
class App;
}

namespace accelerate {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

/// Runs `program` with the flags of `launch`; returns the exit code.
/// `parent_folder` as in `SessionOptions`.
ACCELERATE_API int launch(
    const ConfigLayer& flags,
    const std::vector<std::string>& program,
    const std::string& parent_folder = {});

/// Adds `launch`. Parsing it runs the workers and stores their exit code.
ACCELERATE_API void add_launch_command(CLI::App& app, int& exit_code);

/// Adds `estimate-memory`. Parsing it prints what a model takes.
ACCELERATE_API void add_estimate_memory_command(CLI::App& app);

/// Adds `merge-weights`. Parsing it writes the merged file.
ACCELERATE_API void add_merge_weights_command(CLI::App& app);

/// Adds `config` with `default`, `update` and `show`.
ACCELERATE_API void add_config_command(CLI::App& app, int& exit_code);

/// Adds `env`: what a bug report needs.
ACCELERATE_API void add_env_command(CLI::App& app);

/// Adds `test`: runs the self-check through the launcher.
ACCELERATE_API void add_test_command(CLI::App& app, int& exit_code);

/// Adds `doctor`: what would go wrong before it does.
ACCELERATE_API void add_doctor_command(CLI::App& app, int& exit_code);

/// Adds `completion`. It describes the commands that `app` has when it runs.
ACCELERATE_API void add_completion_command(CLI::App& app);

} // namespace accelerate
