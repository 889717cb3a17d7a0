// SPDX-License-Identifier: Apache-2.0
// Where the files of a run lie: `DIR/run_<id>/attempt_<n>/rank_<r>`.
#pragma once

#include <filesystem>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// The folder of one worker; empty where `log_dir`, an absolute path, is.
ACCELERATE_API std::filesystem::path log_folder(
    const std::filesystem::path& log_dir,
    const std::string& run_id,
    int attempt,
    int rank);

/// Makes the folder of the run and lets the link `latest` in `log_dir` point to
/// it. Machines that share the folder may all call it. Throws `SystemError`
/// where it cannot be written.
ACCELERATE_API void make_run_folder(
    const std::filesystem::path& log_dir,
    const std::string& run_id);

} // namespace accelerate
