// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are numbered: "checkpoint_0", "checkpoint_1" and so on.
#pragma once

#include <cstdint>
#include <filesystem>

#include "accelerate/export.h"

namespace accelerate {

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
