// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <png.h>

#include "accelerate/error.h"
#include "base/str.h"
#include "data/image_formats.h"

namespace accelerate {

at::Tensor decode_png(
    std::span<const std::byte> bytes,
    const std::string& file) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const auto check = [&](int is_good) {
    if (is_good == 0) {
      const std::string what = image.message;
      png_image_free(&image);
      throw DataError(
          str_cat("[read_image] '", file, "' is a damaged PNG file: ", what));
    }
  };
  check(png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()));
  image.format = PNG_FORMAT_RGB;
  auto pixels = at::empty(
      {static_cast<int64_t>(image.height),
       static_cast<int64_t>(image.width),
       3},
      at::kByte);
  const png_color black{0, 0, 0};
  check(png_image_finish_read(
      &image, &black, pixels.data_ptr(), /*row_stride=*/0, nullptr));
  return pixels;
}

std::string encode_png(const at::Tensor& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.format = PNG_FORMAT_RGB;
  image.height = static_cast<png_uint_32>(pixels.size(0));
  image.width = static_cast<png_uint_32>(pixels.size(1));
  const auto write = [&](void* bytes, png_alloc_size_t& size) {
    if (png_image_write_to_memory(
            &image,
            bytes,
            &size,
            /*convert_to_8bit=*/0,
            pixels.const_data_ptr(),
            /*row_stride=*/0,
            nullptr) == 0) {
      throw DataError(
          str_cat("[log_images] no PNG of this picture: ", image.message));
    }
  };
  png_alloc_size_t size = 0;
  write(nullptr, size); // Only measures.
  std::string bytes(size, '\0');
  write(bytes.data(), size);
  bytes.resize(size);
  return bytes;
}

} // namespace accelerate
