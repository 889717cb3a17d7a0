// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "accelerate/error.h"
#include "accelerate/images.h"
#include "base/mapped_file.h"
#include "base/str.h"
#include "data/image_formats.h"

namespace accelerate {
namespace {

bool begins_with(std::span<const std::byte> bytes, std::string_view start) {
  return bytes.size() >= start.size() &&
         std::memcmp(bytes.data(), start.data(), start.size()) == 0;
}

bool is_image_name(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

template <class Iterator>
std::vector<std::filesystem::path> sorted_entries(
    const std::filesystem::path& folder,
    bool (*is_wanted)(const std::filesystem::directory_entry&)) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (Iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_wanted(*entry)) {
      found.push_back(entry->path());
    }
  }
  if (error) {
    throw SystemError(str_cat(
        "[ImageFolder] the folder '",
        folder.string(),
        "' cannot be read: ",
        error.message()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

} // namespace

at::Tensor reserve_pixels(
    int64_t height,
    int64_t width,
    const std::string& file,
    int64_t num_channels) {
  constexpr int64_t kMostPixels = int64_t{1} << 28;
  // Each side is at most 2^31.
  if (height * width > kMostPixels) {
    throw DataError(str_cat(
        "[read_image] '",
        file,
        "' says that it has ",
        height,
        " x ",
        width,
        " pixels, expected at most 2^28; cut or resize it before training"));
  }
  return at::empty({height, width, num_channels}, at::kByte);
}

at::Tensor read_image(const std::filesystem::path& file) {
  const MappedFile content(file, "read_image", "picture");
  const auto bytes = content.bytes();
  at::Tensor pixels;
  if (begins_with(bytes, "\xFF\xD8\xFF")) {
    pixels = decode_jpeg(bytes, file.string());
  } else if (begins_with(bytes, "\x89PNG\r\n\x1A\n")) {
    pixels = decode_png(bytes, file.string());
  } else {
    throw DataError(str_cat(
        "[read_image] '",
        file.string(),
        "' does not begin as a JPEG or PNG file, expected one of them"));
  }
  return pixels.permute({2, 0, 1}).contiguous();
}

ImageFolder::ImageFolder(
    const std::filesystem::path& folder,
    std::vector<ImageTransform> transforms)
    : transforms_(std::move(transforms)) {
  namespace fs = std::filesystem;
  for (const auto& path : sorted_entries<fs::directory_iterator>(
           folder, [](const auto& entry) { return entry.is_directory(); })) {
    const auto index = static_cast<int64_t>(classes_.size());
    classes_.push_back(path.filename().string());
    const auto files = sorted_entries<fs::recursive_directory_iterator>(
        path, [](const auto& entry) {
          return entry.is_regular_file() && is_image_name(entry.path());
        });
    if (files.empty()) {
      throw DataError(str_cat(
          "[ImageFolder] the class '",
          path.string(),
          "' has no file that ends in .jpg, .jpeg or .png; remove the folder, "
          "or convert its pictures"));
    }
    for (const auto& file : files) {
      files_.emplace_back(file, index);
    }
  }
  if (classes_.empty()) {
    throw DataError(str_cat(
        "[ImageFolder] '",
        folder.string(),
        "' has no folders, expected one for each class"));
  }
}

std::pair<at::Tensor, int64_t> ImageFolder::get(
    int64_t index,
    at::Generator& generator) const {
  const auto& [path, label] = files_.at(static_cast<size_t>(index));
  auto image = read_image(path);
  for (const auto& transform : transforms_) {
    image = transform(image, generator);
  }
  if (image.scalar_type() == at::kByte) {
    image = image.to(at::kFloat).div_(255);
  }
  return {std::move(image), label};
}

} // namespace accelerate
