// SPDX-License-Identifier: Apache-2.0
// Merges flags, environment, file and defaults, in this order.
#pragma once

#include "core/base/internal.h"
#include "core/config/env_bridge.h"
#include "core/config/launch_config.h"

namespace accelerate {

/// The configuration of a launch: flag > environment > file > default, field by
/// field, each with its source. The file is `--config_file`, or
/// ACCELERATE_CONFIG_FILE, or the default one if it exists. Throws
/// `ConfigError` if a requested file is missing or malformed, or a text is
/// invalid for its field.
///
///     auto flags = add_launch_flags(*command);
///     command->callback([=] {
///       auto config = resolve_launch_config(*flags, system_env);
///       check_launchable(config);
///     });
ACCELERATE_INTERNAL ResolvedConfig
resolve_launch_config(const ConfigLayer& flags, const EnvLookup& env);

/// The start of an error about the value of a field, by its source: "[launch]
/// --num_processes", or "[FILE:3] num_processes".
ACCELERATE_INTERNAL std::string name_setting(
    const ResolvedConfig& config,
    const char* field);

/// Throws `ConfigError` if the file requests an unsupported engine, or two
/// values contradict each other.
ACCELERATE_INTERNAL void check_launchable(const ResolvedConfig& config);

} // namespace accelerate
