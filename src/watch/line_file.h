// SPDX-License-Identifier: Apache-2.0
// A file of lines that grows while it is read.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/unique_file.h"

namespace accelerate {

/// A plain file, opened for reading; none where it is anything else (a link, a
/// pipe that would never answer), or cannot be opened.
UniqueFile open_plain_file(const std::filesystem::path& path);

/// The last `limit` bytes, from the beginning of a line; empty where it cannot
/// be read.
std::string read_tail(const std::filesystem::path& path, size_t limit);

class LineFile {
 public:
  /// Lines that are longer are skipped.
  static constexpr size_t kMaxLine = 1 << 20;
  /// Of one call to the operating system, if the lines are not longer.
  static constexpr size_t kLeastBlock = 64 << 10;

  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// A whole line and where it begins in the file.
  using Take = std::function<void(std::string_view line, off_t offset)>;

  /// Hands over the whole lines that have come since the last call, of about
  /// `budget` bytes at most, which it takes off; the next call continues. A
  /// last line without its end waits for it. Returns false, without reading, if
  /// the file is another one now or has become shorter: what was read of it no
  /// longer counts. A file that does not exist has no lines.
  bool read(size_t& budget, const Take& take);
  /// Hands over lines that were read before: those from `begin`, which is the
  /// beginning of a line, to `end`. Returns false if the file is another one.
  bool read_again(off_t begin, off_t end, const Take& take) const;
  /// The end of what was read.
  off_t offset() const { return offset_; }

 private:
  UniqueFile open_same(off_t& size) const;

  std::filesystem::path path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t offset_ = 0;
  bool is_skipping_ = false;
};

} // namespace accelerate
