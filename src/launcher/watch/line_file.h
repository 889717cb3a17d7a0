// SPDX-License-Identifier: Apache-2.0
// A file of lines that grows while it is read.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/unique_file.h"

namespace accelerate {

/// A plain file, opened for reading. Empty if it cannot be opened or is not a
/// plain file, for example a link, or a pipe that nobody writes to.
UniqueFile open_plain_file(const std::filesystem::path& path);

/// The last `limit` bytes, starting at the beginning of a line. Empty if the
/// file cannot be read.
std::string read_tail(const std::filesystem::path& path, size_t limit);

class LineFile {
 public:
  /// Longer lines are skipped.
  static constexpr size_t kMaxLine = 1 << 20;
  /// The number of bytes of one read from the operating system. It grows for
  /// longer lines.
  static constexpr size_t kLeastBlock = 64 << 10;

  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// Receives a complete line and its offset in the file.
  using Take = std::function<void(std::string_view line, off_t offset)>;

  /// Passes the complete lines written since the last call to `take`, up to
  /// about `budget` bytes, and subtracts their number from `budget`. The next
  /// call continues. An incomplete last line is read later. Returns false,
  /// without reading, if the file was replaced or truncated, because what was
  /// read before is then invalid. A file that does not exist has no lines.
  bool read(size_t& budget, const Take& take);
  /// Passes lines that were read before to `take`: those from `begin`, the
  /// offset of a line, to `end`. Returns false if the file was replaced.
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
