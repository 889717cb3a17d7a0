// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <csetjmp>
#include <cstdio>

// Included after <cstdio>, because it needs FILE.
#include <jpeglib.h>

#include <jerror.h>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/data/image_formats.h"

namespace accelerate {
namespace {

/// libjpeg reports errors with longjmp, which must not skip destructors.
struct JpegReader {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf on_error{};
  char message[JMSG_LENGTH_MAX] = {};
  bool has_begun = false;
  bool has_ink = false;

  explicit JpegReader() {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = [](j_common_ptr common) {
      auto& self = *static_cast<JpegReader*>(common->client_data);
      (*common->err->format_message)(common, self.message);
      std::longjmp(self.on_error, 1);
    };
    // Treat a truncated file as an error, not as a warning.
    errors.emit_message = [](j_common_ptr common, int level) {
      if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF) {
        (*common->err->error_exit)(common);
      }
    };
  }
  ~JpegReader() {
    if (has_begun) {
      jpeg_destroy_decompress(&info);
    }
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  size_t num_channels() const { return has_ink ? 4 : 3; }

  bool begin(const unsigned char* data, size_t size) {
    if (setjmp(on_error) != 0) {
      return false;
    }
    jpeg_create_decompress(&info);
    has_begun = true;
    jpeg_mem_src(&info, data, size);
    jpeg_read_header(&info, TRUE);
    has_ink =
        info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
    info.out_color_space = has_ink ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info);
    return true;
  }
  bool read(unsigned char* pixels) {
    if (setjmp(on_error) != 0) {
      return false;
    }
    while (info.output_scanline < info.output_height) {
      JSAMPROW row =
          pixels + num_channels() * info.output_width * info.output_scanline;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
    return true;
  }
};

// Converts CMYK to light. Files contain the light that cyan, magenta and yellow
// leave, each scaled by the light that black leaves. This is Adobe's
// convention, which others follow.
at::Tensor light_of_ink(const at::Tensor& ink) {
  const auto left = ink.to(at::kFloat);
  return (left.narrow(2, 0, 3) * left.narrow(2, 3, 1))
      .div_(255)
      .round_()
      .to(at::kByte);
}

} // namespace

at::Tensor decode_jpeg(
    std::span<const std::byte> bytes,
    const std::string& file) {
  JpegReader reader;
  const auto fail = [&] {
    throw DataError(str_cat(
        "[read_image] '", file, "' is a damaged JPEG file: ", reader.message));
  };
  if (!reader.begin(
          reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size())) {
    fail();
  }
  auto pixels = reserve_pixels(
      reader.info.output_height,
      reader.info.output_width,
      file,
      static_cast<int64_t>(reader.num_channels()));
  if (!reader.read(pixels.data_ptr<uint8_t>())) {
    fail();
  }
  return reader.has_ink ? light_of_ink(pixels) : pixels;
}

} // namespace accelerate
