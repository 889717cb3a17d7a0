// SPDX-License-Identifier: Apache-2.0
// Words for a shell.
#pragma once

#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// `text` as one word of a POSIX shell: as it is where it holds nothing
/// special, else in quotes.
ACCELERATE_API std::string shell_quoted(const std::string& text);

/// The words of a command line, with quotes and backslashes as in a POSIX
/// shell; nothing else is special. Throws `ConfigError` where a quote stays
/// open or there is no word.
ACCELERATE_API std::vector<std::string> shell_words(const std::string& text);

} // namespace accelerate
