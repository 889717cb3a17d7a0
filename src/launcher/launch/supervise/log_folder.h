// SPDX-License-Identifier: Apache-2.0
// The layout of a run's log files: `DIR/run_<id>/attempt_<n>/rank_<r>`.
#pragma once

#include <filesystem>
#include <string>

namespace accelerate {

/// The folder of one worker. Empty if `log_dir` is empty. Otherwise `log_dir`
/// must be absolute.
std::filesystem::path log_folder(
    const std::filesystem::path& log_dir,
    const std::string& run_id,
    int attempt,
    int rank);

/// Creates the folder of the run and points the link `latest` in `log_dir` to
/// it. Machines that share the folder may all call it. Throws `SystemError` if
/// it cannot be written.
void make_run_folder(
    const std::filesystem::path& log_dir,
    const std::string& run_id);

} // namespace accelerate
