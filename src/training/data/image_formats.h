// SPDX-License-Identifier: Apache-2.0
// Reading and writing of image formats; a stub replaces a missing library.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace accelerate {

/// uint8 of shape H x W x 3. Throws `DataError` naming `file` if the bytes are
/// damaged, `UsageError` in a build without the library.
at::Tensor decode_jpeg(
    std::span<const std::byte> bytes,
    const std::string& file);
at::Tensor decode_png(
    std::span<const std::byte> bytes,
    const std::string& file);

/// Memory for uint8 of shape H x W x `num_channels`. Throws `DataError` naming
/// `file` if there are more than 2^28 pixels, because headers can claim any
/// size.
at::Tensor reserve_pixels(
    int64_t height,
    int64_t width,
    const std::string& file,
    int64_t num_channels = 3);

/// The bytes of a file. `pixels`: contiguous uint8 of shape H x W x 3 on the
/// CPU. Throws `UsageError` in a build without the library.
std::string encode_png(const at::Tensor& pixels);

} // namespace accelerate
