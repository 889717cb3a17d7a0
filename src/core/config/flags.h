// SPDX-License-Identifier: Apache-2.0
// The launch options as command-line flags.
#pragma once

#include <memory>
#include <string>

#include "core/base/internal.h"
#include "core/config/fields.h"

namespace CLI {
class App;
}

namespace accelerate {

/// Adds `--config_file`, one flag per field and, hidden, the original's flags
/// without effect, each spelled with `_` and with `-`. Parsing `command` fills
/// the layer; `resolve_launch_config` checks the strings. A boolean also
/// accepts a value: `--debug=false`.
ACCELERATE_INTERNAL std::shared_ptr<ConfigLayer> add_launch_flags(
    CLI::App& command);

/// One sentence about an unknown flag of `launch`: its meaning in the original
/// and what to use instead, or the nearest name.
ACCELERATE_INTERNAL std::string explain_unknown_flag(const std::string& flag);

/// "--num_processes,--num-processes": all spellings of a name, for CLI11.
ACCELERATE_INTERNAL std::string flag_spellings(
    const std::string& name,
    char letter);

/// The placeholder of the value in `--help`: "N", "FILE", "NAME".
ACCELERATE_INTERNAL std::string value_placeholder(const Field& field);

} // namespace accelerate
