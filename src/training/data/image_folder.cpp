// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "accelerate/data/images.h"
#include "accelerate/error.h"
#include "core/base/mapped_file.h"
#include "core/base/str.h"
#include "training/data/image_formats.h"

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

std::vector<std::filesystem::directory_entry> sorted_entries(
    const std::filesystem::path& folder) {
  std::vector<std::filesystem::directory_entry> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end;
       !error && entry != end;
       entry.increment(error)) {
    found.push_back(*entry);
  }
  if (error) {
    throw SystemError(str_cat(
        "[ImageFolder] Cannot read the folder '",
        folder.string(),
        "': ",
        error.message(),
        ". Check the path and its permissions"));
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Adds the images below `folder`, following links. `above` lists the parent
/// folders; a link to one of them is a cycle.
void add_pictures(
    const std::filesystem::path& folder,
    std::vector<std::filesystem::path>& above,
    std::vector<std::filesystem::path>& found) {
  std::error_code error;
  const auto canonical_path = std::filesystem::canonical(folder, error);
  if (std::find(above.begin(), above.end(), canonical_path) != above.end()) {
    return;
  }
  above.push_back(canonical_path);
  for (const auto& entry : sorted_entries(folder)) {
    if (entry.is_directory(error)) {
      add_pictures(entry.path(), above, found);
    } else if (is_image_name(entry.path())) {
      found.push_back(entry.path());
    }
  }
  above.pop_back();
}

} // namespace

at::Tensor reserve_pixels(
    int64_t height,
    int64_t width,
    const std::string& file,
    int64_t num_channels) {
  constexpr int64_t kMostPixels = int64_t{1} << 28;
  // Each side is at most 2^31, so the product does not overflow.
  if (height * width > kMostPixels) {
    throw DataError(str_cat(
        "[read_image] '",
        file,
        "' has ",
        height,
        " x ",
        width,
        " pixels, more than the limit of 2^28. Crop or resize it before "
        "training"));
  }
  return at::empty({height, width, num_channels}, at::kByte);
}

at::Tensor read_image(const std::filesystem::path& file) {
  const MappedFile content(file, "read_image", "image");
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
        "' is not a JPEG or PNG file. Convert it to one of these formats"));
  }
  return pixels.permute({2, 0, 1}).contiguous();
}

ImageFolder::ImageFolder(
    const std::filesystem::path& folder,
    std::vector<ImageTransform> transforms)
    : transforms_(std::move(transforms)) {
  for (const auto& entry : sorted_entries(folder)) {
    std::error_code error;
    if (!entry.is_directory(error)) {
      continue;
    }
    const auto& path = entry.path();
    const auto index = static_cast<int64_t>(classes_.size());
    classes_.push_back(path.filename().string());
    std::vector<std::filesystem::path> above;
    std::vector<std::filesystem::path> files;
    add_pictures(path, above, files);
    std::sort(files.begin(), files.end());
    if (files.empty()) {
      throw DataError(str_cat(
          "[ImageFolder] The class folder '",
          path.string(),
          "' has no .jpg, .jpeg or .png file. Remove the folder, or convert "
          "its images"));
    }
    for (const auto& file : files) {
      files_.emplace_back(file, index);
    }
  }
  if (classes_.empty()) {
    throw DataError(str_cat(
        "[ImageFolder] '",
        folder.string(),
        "' has no subfolders. Create one for each class"));
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
