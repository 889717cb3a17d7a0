// SPDX-License-Identifier: Apache-2.0
// A file as memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace accelerate::safetensors {

/// Maps a regular file read-only. Throws `SystemError`.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

} // namespace accelerate::safetensors
