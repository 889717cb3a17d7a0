// SPDX-License-Identifier: Apache-2.0
// Readers of picture formats; where a library is missing, a stub stands in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>

namespace accelerate {

/// uint8 of shape H x W x 3. Throws `DataError` that names `file` where the
/// bytes are damaged, `UsageError` in a build without the library.
at::Tensor decode_jpeg(
    std::span<const std::byte> bytes,
    const std::string& file);
at::Tensor decode_png(
    std::span<const std::byte> bytes,
    const std::string& file);

} // namespace accelerate
