// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/data/image_formats.h"

namespace accelerate {

at::Tensor decode_png(
    std::span<const std::byte> /*bytes*/,
    const std::string& file) {
  throw UsageError(str_cat(
      "[read_image] '",
      file,
      "' is a PNG file, which this build cannot read. Install libpng-dev and "
      "build again"));
}

std::string encode_png(const at::Tensor& /*pixels*/) {
  throw UsageError(
      "[log_images] This build cannot write PNG files. Install libpng-dev and "
      "build again");
}

} // namespace accelerate
