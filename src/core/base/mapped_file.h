// SPDX-License-Identifier: Apache-2.0
// Memory-mapped files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

/// Maps a regular file read-only. Throws `SystemError`, whose message contains
/// `where` and `kind` ("safetensors file").
class ACCELERATE_INTERNAL MappedFile {
 public:
  MappedFile(
      const std::filesystem::path& path,
      std::string_view where,
      std::string_view kind);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Reads a part of a mapped file from the disk and maps its pages, with one
/// call instead of one fault for every few pages. This only saves time. Kernels
/// before 5.14 ignore it.
void populate(std::span<const std::byte> mapped);

} // namespace accelerate
