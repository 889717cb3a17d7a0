// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run in one folder: finding the latest one, and numbered
// ones ("checkpoint_0", "checkpoint_1" and so on).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// The complete checkpoints among the folders in `parent`, the latest at the
/// end. Calls `complain` for damaged or incomplete ones, and for numbered
/// folders that are not checkpoints.
ACCELERATE_INTERNAL std::vector<std::filesystem::path> complete_checkpoints(
    const std::filesystem::path& parent,
    const std::function<void(const std::string& what)>& complain = {});
/// Removes checkpoints with changed bytes from the end of the list. Calls
/// `complain` for each.
ACCELERATE_INTERNAL void drop_damaged(
    std::vector<std::filesystem::path>& checkpoints,
    const std::function<void(const std::string& what)>& complain);
/// The newest complete checkpoint whose bytes are all intact.
ACCELERATE_INTERNAL std::optional<std::filesystem::path>
latest_intact_checkpoint(
    const std::filesystem::path& parent,
    const std::function<void(const std::string& what)>& complain = {});
/// The path of the checkpoint with this number in `parent`.
ACCELERATE_INTERNAL std::filesystem::path numbered_checkpoint(
    const std::filesystem::path& parent,
    std::int64_t number);
/// N of a path that ends in "checkpoint_N". Empty for other names, and for N
/// with leading zeros.
ACCELERATE_INTERNAL std::optional<std::int64_t> checkpoint_number(
    const std::filesystem::path& folder);
/// The numbered files and folders in `parent`, by number.
ACCELERATE_INTERNAL std::map<std::int64_t, std::filesystem::path>
numbered_checkpoints(const std::filesystem::path& parent);
/// The moment (`Manifest::moment`) of each numbered checkpoint in `parent` that
/// the main process of `job` has written or is writing, by number. Does not
/// read finished checkpoints below `first`, and skips damaged ones.
ACCELERATE_INTERNAL std::map<std::int64_t, std::int64_t> moments_of_job(
    const std::filesystem::path& parent,
    const std::string& job,
    std::int64_t first);
/// Whether Hugging Face Accelerate could have written the folder.
ACCELERATE_INTERNAL bool is_original_checkpoint(
    const std::filesystem::path& folder);
/// One more than the highest number used by any file or folder in `parent`.
ACCELERATE_INTERNAL std::int64_t next_checkpoint_number(
    const std::filesystem::path& parent);
/// Deletes the oldest checkpoints, so that `limit` complete ones remain. Also
/// deletes damaged ones that are older. Does not delete or count anything else.
/// Throws `SystemError`.
ACCELERATE_INTERNAL void rotate_checkpoints(
    const std::filesystem::path& parent,
    std::int64_t limit);

} // namespace accelerate
