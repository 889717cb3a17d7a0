// SPDX-License-Identifier: Apache-2.0
// The errors of a build without libjpeg and libpng, tested with its stub files.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/error.h"
#include "training/data/image_formats.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(NoImageFormats, NamesTheFileAndWhatToInstall) {
  EXPECT_THAT(
      [] { decode_jpeg({}, "cats/a.jpg"); },
      ThrowsMessage<UsageError>(
          HasSubstr("[read_image] 'cats/a.jpg' is a JPEG file, which this "
                    "build cannot read. Install libjpeg-dev")));
  EXPECT_THAT(
      [] { decode_png({}, "cats/a.png"); },
      ThrowsMessage<UsageError>(
          HasSubstr("[read_image] 'cats/a.png' is a PNG file, which this build "
                    "cannot read. Install libpng-dev")));
  EXPECT_THAT(
      [] {
        encode_png(torch::zeros({1, 1, 3}, torch::kByte));
      },
      ThrowsMessage<UsageError>(HasSubstr(
          "[log_images] This build cannot write PNG files. Install")));
}

} // namespace
} // namespace accelerate
