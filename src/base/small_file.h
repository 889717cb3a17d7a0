// SPDX-License-Identifier: Apache-2.0
// Files that people write by hand, read whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// No file that a person writes is larger.
inline constexpr size_t kMaxSmallFile = 1 << 20;

/// The bytes of `path`, which may be a pipe (`<(command)`) too. Throws
/// `ConfigError` where it cannot be read, has more than `limit` bytes (a device
/// has no end), or nothing comes out of a pipe for five seconds; `what` names
/// it in the message: "the host file".
ACCELERATE_API std::string read_small_file(
    const std::filesystem::path& path,
    const std::string& what,
    size_t limit = kMaxSmallFile);

} // namespace accelerate
