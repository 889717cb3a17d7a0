// SPDX-License-Identifier: Apache-2.0
// Image files in class folders, and image transforms for training.
//
//     accelerate::ImageFolder images(
//         "flowers/train", // flowers/train/rose/*.jpg, flowers/train/lily/...
//         {accelerate::random_resized_crop(64),
//          accelerate::random_horizontal_flip(),
//          accelerate::normalize({0.5, 0.5, 0.5}, {0.5, 0.5, 0.5})});
//     accelerate::DataLoader image_loader(
//         images, {.batch_size = 8, .shuffle = true, .num_workers = 2});
//
// Random transforms draw from the generator that a loader seeds for each sample
// (`RandomDataset`), so results do not depend on the number of workers or
// ranks.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Reads a JPEG or PNG file as a uint8 tensor of shape 3 x H x W in RGB order.
/// The first bytes of the file determine the format. The pixels are the same as
/// with Pillow's `convert("RGB")`: grey is replicated, transparency is dropped,
/// 16-bit channels keep their upper 8 bits, and CMYK is converted. Gamma and
/// EXIF rotation are ignored. Throws `SystemError` if the file cannot be read,
/// `DataError` if it is damaged, has a different format, or has more than 2^28
/// pixels, and `UsageError` if this build has no reader for the format.
ACCELERATE_API at::Tensor read_image(const std::filesystem::path& file);

/// A preprocessing step, which takes and returns an image of shape C x H x W.
/// Several threads call it at once. You can also write your own function of
/// this type.
using ImageTransform = std::function<
    at::Tensor(const at::Tensor& image, at::Generator& generator)>;

/// Resizes the shorter side to `size` pixels, with bilinear interpolation and
/// antialiasing.
ACCELERATE_API ImageTransform resize(int64_t size);
/// Resizes both sides, ignoring the aspect ratio.
ACCELERATE_API ImageTransform resize(int64_t height, int64_t width);
/// Cuts out the centre. Smaller images are first padded with black.
ACCELERATE_API ImageTransform center_crop(int64_t size);
/// Pads each side with `padding` black pixels, then cuts out a random part of
/// `size` x `size` pixels. Throws `UsageError` if the padded image is too
/// small.
ACCELERATE_API ImageTransform random_crop(int64_t size, int64_t padding = 0);
/// Cuts out a random part that covers `min_scale` to 1 of the area, with an
/// aspect ratio from 3:4 to 4:3, and resizes it to `size` x `size`, like
/// torchvision's RandomResizedCrop.
ACCELERATE_API ImageTransform
random_resized_crop(int64_t size, double min_scale = 0.08);
/// Mirrors the image horizontally with this probability.
ACCELERATE_API ImageTransform random_horizontal_flip(double probability = 0.5);
/// Converts to fp32 values from 0 to 1, subtracts `mean` and divides by
/// `deviation`. Both contain one value per channel, or one value for all
/// channels.
ACCELERATE_API ImageTransform
normalize(std::vector<double> mean, std::vector<double> deviation);

/// A dataset of the image files in `folder/CLASS/...`, including subfolders,
/// links and hidden files. Classes are numbered in alphabetical order, and
/// samples are ordered by class and path. A sample consists of the image after
/// all transforms, and its class. Without transforms, images contain fp32
/// values from 0 to 1.
class ACCELERATE_API ImageFolder {
 public:
  /// Lists files that end in .jpg, .jpeg or .png (in any case) without reading
  /// them. Throws `SystemError` if the folder cannot be read, and `DataError`
  /// if there are no classes or a class has no images.
  explicit ImageFolder(
      const std::filesystem::path& folder,
      std::vector<ImageTransform> transforms = {});

  size_t size() const { return files_.size(); }
  /// Throws the same errors as `read_image`.
  std::pair<at::Tensor, int64_t> get(int64_t index, at::Generator& generator)
      const;
  const std::vector<std::string>& classes() const { return classes_; }
  const std::filesystem::path& file(int64_t index) const {
    return files_.at(static_cast<size_t>(index)).first;
  }

 private:
  std::vector<std::string> classes_;
  std::vector<std::pair<std::filesystem::path, int64_t>> files_;
  std::vector<ImageTransform> transforms_;
};

} // namespace accelerate
