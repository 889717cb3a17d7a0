// SPDX-License-Identifier: Apache-2.0
// Puts flags, environment, file and defaults together, in this order.
#pragma once

#include "config/env_bridge.h"
#include "config/launch_config.h"

namespace accelerate {

/// The configuration of a launch: flag > environment > file > default, field
/// by field, each with its source. The file is `--config_file`, else
/// ACCELERATE_CONFIG_FILE, else the default one where it exists. Throws
/// `ConfigError` where a file that was asked for is missing or malformed, or a
/// text does not suit its field.
///
///     auto flags = add_launch_flags(*command);
///     command->callback([=] {
///       auto config = resolve_launch_config(*flags, system_env);
///       check_launchable(config);
///     });
ACCELERATE_API ResolvedConfig
resolve_launch_config(const ConfigLayer& flags, const EnvLookup& env);

/// The start of an error about the value of a field, by its source:
/// "[launch] --num_processes", or "[FILE:3] num_processes".
ACCELERATE_API std::string name_setting(
    const ResolvedConfig& config,
    const char* field);

/// Throws `ConfigError` where the file asks for an engine that we do not have
/// or where two values contradict each other.
ACCELERATE_API void check_launchable(const ResolvedConfig& config);

} // namespace accelerate
