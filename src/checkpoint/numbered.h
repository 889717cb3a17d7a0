// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run in one folder: which one is the latest, and those
// that are numbered, "checkpoint_0", "checkpoint_1" and so on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// The complete checkpoints among the folders in `parent`, the one saved last
/// at the end. `complain` is called for those that are damaged or incomplete,
/// and for numbered folders that are not checkpoints.
ACCELERATE_API std::vector<std::filesystem::path> complete_checkpoints(
    const std::filesystem::path& parent,
    const std::function<void(const std::string& what)>& complain = {});
/// Takes those at the end away of which a byte has changed. `complain` is
/// called for each.
ACCELERATE_API void drop_damaged(
    std::vector<std::filesystem::path>& checkpoints,
    const std::function<void(const std::string& what)>& complain);
/// The newest of the complete ones all bytes of which are as they were written.
ACCELERATE_API std::optional<std::filesystem::path> newest_sound_checkpoint(
    const std::filesystem::path& parent,
    const std::function<void(const std::string& what)>& complain = {});
/// Its path in `parent`.
ACCELERATE_API std::filesystem::path numbered_checkpoint(
    const std::filesystem::path& parent,
    std::int64_t number);
/// One more than the highest of the names that are in `parent`, whatever has
/// it.
ACCELERATE_API std::int64_t next_checkpoint_number(
    const std::filesystem::path& parent);
/// Takes the oldest away, so that `limit` complete ones are left; older ones
/// that are damaged go too. What is no checkpoint neither goes nor counts.
/// Throws `SystemError`.
ACCELERATE_API void rotate_checkpoints(
    const std::filesystem::path& parent,
    std::int64_t limit);

} // namespace accelerate
