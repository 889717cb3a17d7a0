// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/data/image_formats.h"

namespace accelerate {

at::Tensor decode_jpeg(
    std::span<const std::byte> /*bytes*/,
    const std::string& file) {
  throw UsageError(str_cat(
      "[read_image] '",
      file,
      "' is a JPEG file, which this build cannot read. Install libjpeg-dev and "
      "build again"));
}

} // namespace accelerate
