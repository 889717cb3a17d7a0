// SPDX-License-Identifier: Apache-2.0
// Converts between the launch configuration and environment variables.
#pragma once

#include "accelerate/process.h"
#include "core/base/internal.h"
#include "core/config/launch_config.h"

namespace accelerate {

/// The fields whose variable is set and not empty.
ACCELERATE_INTERNAL ConfigLayer read_environment(const EnvLookup& env);

/// The variables that pass the configuration to workers, for the fields that
/// request it (`Field::workers`). Ranks, sizes and the address of rank 0 are
/// not included, because the launcher sets them. Undecided variables are
/// omitted, so that inherited values remain.
ACCELERATE_INTERNAL std::map<std::string, std::string> worker_variables(
    const LaunchConfig& config);

/// $HOME, or the user's home folder.
ACCELERATE_INTERNAL std::filesystem::path home_folder(const EnvLookup& env);

/// `$HF_HOME/accelerate/default_config.yaml`, or under
/// `$XDG_CACHE_HOME/huggingface`, or under `~/.cache/huggingface`;
/// `default_config.json` in the same folder if only that exists.
ACCELERATE_INTERNAL std::filesystem::path default_config_path(
    const EnvLookup& env);

/// Where Hugging Face's libraries cache downloaded models: `$HF_HUB_CACHE`, or
/// `$HUGGINGFACE_HUB_CACHE`, or `hub` next to the `accelerate` folder above.
ACCELERATE_INTERNAL std::filesystem::path hub_cache(const EnvLookup& env);

} // namespace accelerate
