// SPDX-License-Identifier: Apache-2.0
// Words for a shell.
#pragma once

#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// `text` as one word of a POSIX shell: as it is where it holds nothing
/// special, else in quotes.
ACCELERATE_API std::string shell_quoted(const std::string& text);

} // namespace accelerate
