// SPDX-License-Identifier: Apache-2.0
// Message authentication codes (HMAC-SHA256).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

inline constexpr size_t kCodeBytes = 32;

/// The code of `text` under `key`, as bytes. Throws `ConfigError` in a build
/// without libsodium.
ACCELERATE_INTERNAL std::string message_code(
    std::string_view key,
    std::string_view text);

/// Constant-time comparison. False if the sizes differ.
ACCELERATE_INTERNAL bool is_same_code(std::string_view a, std::string_view b);

} // namespace accelerate
