// SPDX-License-Identifier: Apache-2.0
// Shell quoting.
#pragma once

#include <string>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// `text` as one word of a POSIX shell, quoted if it contains special
/// characters.
ACCELERATE_INTERNAL std::string shell_quoted(const std::string& text);

/// The words of a command line with the quotes and backslashes of a POSIX
/// shell. No other characters are special. Throws `ConfigError` if a quote is
/// not closed or there is no word.
std::vector<std::string> shell_words(const std::string& text);

} // namespace accelerate
