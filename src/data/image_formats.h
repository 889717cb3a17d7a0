// SPDX-License-Identifier: Apache-2.0
// Picture formats, read and written; where a library is missing, a stub stands
// in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
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

/// Memory for uint8 of shape H x W x `num_channels`. Throws `DataError` that
/// names `file` where there are more than 2^28 pixels: a header is soon made.
at::Tensor reserve_pixels(
    int64_t height,
    int64_t width,
    const std::string& file,
    int64_t num_channels = 3);

/// The bytes of a file. `pixels`: uint8 of shape H x W x 3, in one piece on the
/// CPU. Throws `UsageError` in a build without the library.
std::string encode_png(const at::Tensor& pixels);

} // namespace accelerate
