// SPDX-License-Identifier: Apache-2.0
// Between the launch configuration and environment variables, both ways.
#pragma once

#include "accelerate/process.h"
#include "config/launch_config.h"

namespace accelerate {

/// The fields whose variable is set and not empty.
ACCELERATE_API ConfigLayer read_environment(const EnvLookup& env);

/// The variables by which the workers learn the configuration: those of the
/// fields that say so (`Field::workers`). Ranks, sizes
/// and the meeting point are not among them: they belong to the launcher.
/// Variables that the configuration does not decide are left out, so that an
/// inherited value stays.
ACCELERATE_API std::map<std::string, std::string> worker_variables(
    const LaunchConfig& config);

/// $HOME, else the home folder of this user.
ACCELERATE_API std::filesystem::path home_folder(const EnvLookup& env);

/// `$HF_HOME/accelerate/default_config.yaml`, else under
/// `$XDG_CACHE_HOME/huggingface`, else under `~/.cache/huggingface`;
/// `default_config.json` beside it where only that exists.
ACCELERATE_API std::filesystem::path default_config_path(const EnvLookup& env);

/// Where Hugging Face's libraries keep downloaded models: `$HF_HUB_CACHE`, else
/// `$HUGGINGFACE_HUB_CACHE`, else `hub` beside `accelerate` above.
ACCELERATE_API std::filesystem::path hub_cache(const EnvLookup& env);

} // namespace accelerate
