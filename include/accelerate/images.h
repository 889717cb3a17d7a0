// SPDX-License-Identifier: Apache-2.0
// Image files in class folders, and what is done to pictures before training.
//
//     accelerate::ImageFolder images(
//         "flowers/train", // flowers/train/rose/*.jpg, flowers/train/lily/...
//         {accelerate::random_resized_crop(64),
//          accelerate::random_horizontal_flip(),
//          accelerate::normalize({0.5, 0.5, 0.5}, {0.5, 0.5, 0.5})});
//     accelerate::DataLoader image_loader(
//         images, {.batch_size = 8, .shuffle = true, .num_workers = 2});
//
// What is random draws from the generator that a loader gives each sample
// (`RandomDataset`): the same pictures with any workers and ranks.
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

/// A JPEG or PNG file, told apart by its first bytes, as uint8 of shape
/// 3 x H x W in the order red, green, blue, as Pillow's `convert("RGB")` gives
/// it: grey ones are repeated, transparency is left out, of 16 bits the upper 8
/// are taken, printers' colours (CMYK) become light. What the file says of
/// gamma and EXIF of rotation is not looked at. Throws `SystemError` where the
/// file cannot be read, `DataError` where it is damaged, another format or of
/// more than 2^28 pixels, `UsageError` where this build has no reader for it.
ACCELERATE_API at::Tensor read_image(const std::filesystem::path& file);

/// One step from file to model: takes and gives C x H x W. Called by several
/// threads at once. Your own is any function of this type.
using ImageTransform = std::function<
    at::Tensor(const at::Tensor& image, at::Generator& generator)>;

/// The shorter side becomes `size` pixels; bilinear with antialiasing.
ACCELERATE_API ImageTransform resize(int64_t size);
/// Both sides, whatever the proportions were.
ACCELERATE_API ImageTransform resize(int64_t height, int64_t width);
/// The middle; smaller pictures get a black frame first.
ACCELERATE_API ImageTransform center_crop(int64_t size);
/// Anywhere, after a black frame of `padding` pixels. Throws `UsageError` where
/// the picture is smaller.
ACCELERATE_API ImageTransform random_crop(int64_t size, int64_t padding = 0);
/// A part of `min_scale` to all of the area, with sides from 3:4 to 4:3,
/// resized to `size` x `size`: as torchvision's RandomResizedCrop.
ACCELERATE_API ImageTransform
random_resized_crop(int64_t size, double min_scale = 0.08);
/// Mirrored with this probability.
ACCELERATE_API ImageTransform random_horizontal_flip(double probability = 0.5);
/// To fp32 from 0 to 1, less `mean`, divided by `deviation`: one number for
/// each channel or one for all.
ACCELERATE_API ImageTransform
normalize(std::vector<double> mean, std::vector<double> deviation);

/// Files of `folder/CLASS/...`, however deep, links followed, hidden ones too.
/// Classes are numbered in the order of their names, samples stand in the order
/// of classes and paths. A sample is
/// the picture after all transforms, and its class; without transforms fp32
/// from 0 to 1.
class ACCELERATE_API ImageFolder {
 public:
  /// Lists files that end in .jpg, .jpeg or .png (in any case); reads none.
  /// Throws `SystemError` where the folder cannot be read, `DataError` where
  /// there is no class, or one without a picture.
  explicit ImageFolder(
      const std::filesystem::path& folder,
      std::vector<ImageTransform> transforms = {});

  size_t size() const { return files_.size(); }
  /// Throws as `read_image`.
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
