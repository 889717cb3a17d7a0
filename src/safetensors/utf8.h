// SPDX-License-Identifier: Apache-2.0
// Is this UTF-8?
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate::safetensors {

/// Where the first byte is that is not part of a well-formed character (no
/// overlong forms, no surrogates, nothing above U+10FFFF); nothing where all
/// is well.
ACCELERATE_API std::optional<std::size_t> find_invalid_utf8(
    std::string_view text);

} // namespace accelerate::safetensors
