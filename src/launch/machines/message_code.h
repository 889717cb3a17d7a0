// SPDX-License-Identifier: Apache-2.0
// Codes that only those who share a secret can make (HMAC-SHA256).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

inline constexpr size_t kCodeBytes = 32;

/// The code of `text` under `key`, as bytes. Throws `ConfigError` in a build
/// without libsodium.
ACCELERATE_API std::string message_code(
    std::string_view key,
    std::string_view text);

/// Takes the same time wherever they differ; false where the sizes do.
ACCELERATE_API bool is_same_code(std::string_view a, std::string_view b);

} // namespace accelerate
