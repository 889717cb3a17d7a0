// SPDX-License-Identifier: Apache-2.0
// A file that only grows, by whole pieces.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace accelerate {

/// Every `write` is one call to the operating system: who reads along, or reads
/// what a killed process has left, finds whole pieces, and at most the last one
/// cut. A piece that does not fit on the disk is not there at all. Throws
/// `SystemError`.
class AppendFile {
 public:
  /// Makes the file where there is none. `cut_line`: an end of the file that is
  /// no whole line, as a killed process leaves one, is taken away.
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
