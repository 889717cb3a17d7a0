// SPDX-License-Identifier: Apache-2.0
// What the launcher adds to a run's folder: how the run ended.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/base/internal.h"

namespace accelerate {

struct RunExitRecord {
  int exit_code = 0;
  /// The rank of the process that failed first. Empty if none failed, for
  /// example if the job was interrupted.
  std::optional<int> rank = {};
  std::string host = {};
  /// "failed with exit code 1"
  std::string how = {};
  /// "ValueError: bad batch". Empty if the process printed no error.
  std::string error = {};
};

/// Appends a line to `exits.jsonl` (docs/guide_observe.md has its schema).
/// Throws `SystemError`.
ACCELERATE_INTERNAL void record_exit(
    const std::filesystem::path& folder,
    const RunExitRecord& exit);

} // namespace accelerate
