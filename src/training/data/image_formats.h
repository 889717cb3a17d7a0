// SPDX-License-Identifier: Apache-2.0
// Reads and writes image formats. A stub replaces a missing library.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace accelerate {

/// Returns uint8 of shape H x W x 3. Throws a `DataError` that names `file` if
/// the bytes are damaged, and `UsageError` in a build without the library.
at::Tensor decode_jpeg(
    std::span<const std::byte> bytes,
    const std::string& file);
at::Tensor decode_png(
    std::span<const std::byte> bytes,
    const std::string& file);

/// Allocates uint8 of shape H x W x `num_channels`. Throws a `DataError` that
/// names `file` if there are more than 2^28 pixels, because a damaged header
/// can contain any size.
at::Tensor reserve_pixels(
    int64_t height,
    int64_t width,
    const std::string& file,
    int64_t num_channels = 3);

/// Returns the bytes of a file. `pixels` is contiguous uint8 of shape H x W x 3
/// on the CPU. Throws `UsageError` in a build without the library.
std::string encode_png(const at::Tensor& pixels);

} // namespace accelerate
