// SPDX-License-Identifier: Apache-2.0
// What a program writes on stderr when an error ends it: a Python traceback,
// an uncaught C++ exception, the stacks of a fatal signal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Where in `text` such a report begins; npos if it holds none.
ACCELERATE_API size_t find_last_words(std::string_view text);

/// `line` without the "[rank1]: " that torch puts before tracebacks.
ACCELERATE_API std::string_view without_rank(std::string_view line, int rank);

/// "ValueError: bad batch": the error that the report ends with.
ACCELERATE_API std::string final_error(const std::vector<std::string>& words);

/// Whether the error only says that another rank is gone.
ACCELERATE_API bool is_consequence(const std::vector<std::string>& words);

/// Whether the report says that Ctrl-C ended the program.
ACCELERATE_API bool is_interrupt(const std::vector<std::string>& words);

/// The report with one line ("  ... 6 frames in torch, accelerate") for each
/// run of frames in installed packages and in Python's own library. A report
/// without any other frame stays as it is. `own_package` is the folder of the
/// Python package `accelerate` that may lie outside of site-packages.
ACCELERATE_API std::vector<std::string> fold_library_frames(
    const std::vector<std::string>& words,
    const std::string& own_package = {});

} // namespace accelerate
