// SPDX-License-Identifier: Apache-2.0
// Descriptions of the options for people.
#pragma once

#include <string>

#include "core/base/internal.h"
#include "core/config/launch_config.h"

namespace accelerate {

/// The content of `docs/options.md`: all options by group, with default, file
/// key, variable and meaning.
ACCELERATE_INTERNAL std::string options_markdown();

/// "2 processes on the CPU, bf16": what a launch with these values does on a
/// machine with `num_gpus` usable GPUs.
ACCELERATE_INTERNAL std::string summarize(
    const LaunchConfig& config,
    int num_gpus);

/// One line per option: name, value, source.
ACCELERATE_INTERNAL std::string describe_sources(const ResolvedConfig& config);

} // namespace accelerate
