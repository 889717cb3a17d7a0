// SPDX-License-Identifier: Apache-2.0
// What `--help` looks like.
#pragma once

#include "accelerate/export.h"

namespace CLI {
class App;
}

namespace accelerate {

/// Gives `app` and the commands added to it afterwards a help of 80 columns
/// that shows each option in one spelling.
ACCELERATE_API void use_readable_help(CLI::App& app);

} // namespace accelerate
