// SPDX-License-Identifier: Apache-2.0
// Reads parts of files without mapping them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/base/internal.h"
#include "core/base/unique_file.h"

namespace accelerate {

/// An open file. If the file is truncated, `read` throws. (With a mapping, the
/// system would kill the process with SIGBUS.) If the file is replaced, `read`
/// returns the old content. Safe to use from several threads.
class ACCELERATE_INTERNAL FileReader {
 public:
  /// Throws `SystemError` if this is not a readable file. Messages begin with
  /// `where` ("[offload]").
  FileReader(std::filesystem::path path, std::string_view where);

  const std::filesystem::path& path() const { return path_; }
  /// The number of bytes when the file was opened.
  std::uint64_t size() const { return size_; }
  /// Fills `bytes` from this position. Several threads read large parts. Throws
  /// `DataError` if the file is too short, and `SystemError` if the disk fails.
  void read(std::uint64_t position, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  std::string where_;
  UniqueFile file_;
  std::uint64_t size_ = 0;
};

} // namespace accelerate
