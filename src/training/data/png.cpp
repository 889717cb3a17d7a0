// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/data/image_formats.h"

namespace accelerate {
namespace {

/// Reads raw pixels, like other image libraries. libpng's simplified reader
/// would treat 16 bits as linear light, apply the file's gamma, and blend
/// transparency. libpng reports errors with longjmp, which must not skip
/// destructors.
struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> left;
  int num_passes = 1;
  char message[160] = {};

  explicit PngReader(std::span<const std::byte> bytes) : left(bytes) {
    png = png_create_read_struct(
        PNG_LIBPNG_VER_STRING,
        this,
        [](png_structp jumping, png_const_charp what) {
          auto& self = *static_cast<PngReader*>(png_get_error_ptr(jumping));
          std::snprintf(self.message, sizeof self.message, "%s", what);
          png_longjmp(jumping, 1);
        },
        [](png_structp, png_const_charp) {});
    info = png != nullptr ? png_create_info_struct(png) : nullptr;
    if (info == nullptr) {
      png_destroy_read_struct(&png, nullptr, nullptr);
      throw std::bad_alloc();
    }
    png_set_read_fn(
        png, this, [](png_structp reading, png_bytep to, size_t size) {
          auto& self = *static_cast<PngReader*>(png_get_io_ptr(reading));
          if (size > self.left.size()) {
            png_error(reading, "the file is truncated");
          }
          std::memcpy(to, self.left.data(), size);
          self.left = self.left.subspan(size);
        });
  }
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  int64_t height() const { return png_get_image_height(png, info); }
  int64_t width() const { return png_get_image_width(png, info); }

  bool begin() {
    if (setjmp(png_jmpbuf(png)) != 0) {
      return false;
    }
    png_read_info(png, info);
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    num_passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return true;
  }
  bool read(unsigned char* pixels) {
    if (setjmp(png_jmpbuf(png)) != 0) {
      return false;
    }
    const auto stride = size_t{3} * png_get_image_width(png, info);
    const auto num_rows = png_get_image_height(png, info);
    for (int pass = 0; pass < num_passes; ++pass) {
      for (png_uint_32 row = 0; row < num_rows; ++row) {
        png_read_row(png, pixels + stride * row, nullptr);
      }
    }
    return true;
  }
};

} // namespace

at::Tensor decode_png(
    std::span<const std::byte> bytes,
    const std::string& file) {
  PngReader reader(bytes);
  const auto fail = [&] {
    throw DataError(str_cat(
        "[read_image] '", file, "' is a damaged PNG file: ", reader.message));
  };
  if (!reader.begin()) {
    fail();
  }
  auto pixels = reserve_pixels(reader.height(), reader.width(), file);
  if (!reader.read(pixels.data_ptr<uint8_t>())) {
    fail();
  }
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
      throw DataError(str_cat(
          "[log_images] Cannot encode this image as PNG: ", image.message));
    }
  };
  png_alloc_size_t size = 0;
  write(nullptr, size); // only measures the size
  std::string bytes(size, '\0');
  write(bytes.data(), size);
  bytes.resize(size);
  return bytes;
}

} // namespace accelerate
