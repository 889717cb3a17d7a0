// SPDX-License-Identifier: Apache-2.0
// What a program writes to stderr when an error ends it: a Python traceback, an
// uncaught C++ exception, the stacks of a fatal signal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// The position in `text` where such a report starts. Returns npos if there is
/// none.
size_t find_error_report(std::string_view text);

/// `line` without the "[rank1]: " that torch puts before tracebacks.
std::string_view without_rank(std::string_view line, int rank);

/// "ValueError: bad batch": the error at the end of the report.
ACCELERATE_INTERNAL std::string final_error(
    const std::vector<std::string>& lines);

/// Whether the error only says that another rank has ended.
bool is_consequence(const std::vector<std::string>& lines);

/// Whether Ctrl-C ended the program.
bool is_interrupt(const std::vector<std::string>& lines);

/// The report with each sequence of frames in installed packages and Python's
/// own library replaced with one line ("  ... 6 frames in torch, accelerate").
/// A report without any other frame is unchanged. `own_package` is the folder
/// of the Python package `accelerate`, which may be outside of site-packages.
ACCELERATE_INTERNAL std::vector<std::string> fold_library_frames(
    const std::vector<std::string>& lines,
    const std::string& own_package = {});

} // namespace accelerate
