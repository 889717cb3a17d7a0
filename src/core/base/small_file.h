// SPDX-License-Identifier: Apache-2.0
// Reads hand-written files as a whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "core/base/internal.h"

namespace accelerate {

/// Hand-written files are never larger.
inline constexpr size_t kMaxSmallFile = 1 << 20;

/// The bytes of `path`, which may also be a pipe (`<(command)`). Throws
/// `ConfigError` if it cannot be read, has more than `limit` bytes (devices
/// have no end), or a pipe delivers nothing for five seconds; `what` names it
/// in the message: "the host file".
ACCELERATE_INTERNAL std::string read_small_file(
    const std::filesystem::path& path,
    const std::string& what,
    size_t limit = kMaxSmallFile);

} // namespace accelerate
