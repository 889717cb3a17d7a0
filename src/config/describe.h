// SPDX-License-Identifier: Apache-2.0
// The list of options as documents: for people to read.
#pragma once

#include <string>

#include "config/launch_config.h"

namespace accelerate {

/// `docs/options.md`: every option by group, with its default, its key in the
/// file, its variable and its meaning.
ACCELERATE_API std::string options_markdown();

/// "2 processes on the CPU, bf16": what a launch with these values does on a
/// machine with `num_gpus` usable GPUs.
ACCELERATE_API std::string summarize(const LaunchConfig& config, int num_gpus);

/// One line per option: name, value, source.
ACCELERATE_API std::string describe_sources(const ResolvedConfig& config);

} // namespace accelerate
