// SPDX-License-Identifier: Apache-2.0
// Reads whole files that users write by hand.
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
/// have no end), or is a pipe that delivers nothing for five seconds. `what` is
/// the name of the file in the message, such as "the host file".
ACCELERATE_INTERNAL std::string read_small_file(
    const std::filesystem::path& path,
    const std::string& what,
    size_t limit = kMaxSmallFile);

} // namespace accelerate
