// SPDX-License-Identifier: Apache-2.0
// One stream of one worker, in a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/unique_file.h"

namespace accelerate {

/// An append-only file. If the disk is full, bytes are lost, and one message is
/// printed. When there is space again, the file continues with a line that says
/// how much is missing. A deleted file is created again with its folders, with
/// a message.
class LogFile {
 public:
  using Say = std::function<void(const std::string& line)>;

  /// Creates the file and its parent folders. With `most_bytes`, a file that
  /// has grown to that size becomes `<file>.1` at the end of a line (the
  /// existing one `.2`, and so on; five are kept) and a new one starts. Throws
  /// `SystemError` if the file cannot be written.
  LogFile(std::filesystem::path file, int64_t most_bytes, Say say);

  void write(std::string_view text);
  /// Bytes that are in no file.
  int64_t num_lost() const { return num_lost_; }

 private:
  void open(const UniqueFile& folder);
  void rotate();
  void replace_deleted();
  void append(std::string_view text);

  std::filesystem::path path_;
  int64_t most_bytes_;
  Say say_;
  UniqueFile file_;
  int64_t size_ = 0;
  int64_t num_lost_ = 0;
  int64_t num_lost_here_ = 0;
  bool is_at_line_start_ = true;
  bool is_loss_said_ = false;
};

} // namespace accelerate
