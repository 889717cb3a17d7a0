// SPDX-License-Identifier: Apache-2.0
// A file to which only complete pieces are appended.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

/// Every `write` is one system call, so readers find complete pieces, even
/// while the file grows or after the writer was killed. At most the last piece
/// is truncated. A piece that does not fit on the disk is not written at all.
/// Throws `SystemError`.
class ACCELERATE_INTERNAL AppendFile {
 public:
  /// Creates the file if missing. `cut_line` removes an incomplete last line,
  /// as left by a killed process.
  AppendFile(std::filesystem::path path, bool cut_line);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void write(std::string_view piece);
  bool was_empty() const { return was_empty_; }

 private:
  void cut_unfinished_line();
  void take_back(off_t size);
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path path_;
  int file_ = -1;
  bool was_empty_ = true;
};

/// Seconds since 1970.
double wall_seconds();
/// The name of this machine.
std::string this_host();

} // namespace accelerate
