// SPDX-License-Identifier: Apache-2.0
#include "core/tracking/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"

namespace accelerate {

AppendFile::AppendFile(std::filesystem::path path, bool cut_line)
    : path_(std::move(path)) {
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) {
    fail("opened");
  }
  if (cut_line) {
    try {
      cut_unfinished_line();
    } catch (...) {
      close(file_);
      throw;
    }
  }
}

AppendFile::~AppendFile() {
  close(file_);
}

void AppendFile::write(std::string_view piece) {
  off_t num_written = 0;
  while (!piece.empty()) {
    const ssize_t written = ::write(file_, piece.data(), piece.size());
    if (written < 0 && errno != EINTR) {
      const int why = errno;
      take_back(num_written);
      errno = why;
      fail("written");
    }
    const auto size = std::max<ssize_t>(written, 0);
    num_written += size;
    piece.remove_prefix(static_cast<size_t>(size));
  }
}

// On a full disk, only a part of a piece is written. Remove it, because output
// after it would make both unreadable.
void AppendFile::take_back(off_t size) {
  struct stat about {};
  if (size > 0 && fstat(file_, &about) == 0 && about.st_size >= size &&
      ftruncate(file_, about.st_size - size) != 0) {
    return; // the caller is about to report the error
  }
}

void AppendFile::cut_unfinished_line() {
  struct stat about {};
  if (fstat(file_, &about) != 0) {
    fail("read");
  }
  off_t end = about.st_size;
  std::array<char, 4096> block{};
  while (end > 0) {
    const auto size = std::min<off_t>(end, block.size());
    const auto got =
        pread(file_, block.data(), static_cast<size_t>(size), end - size);
    if (got != size) {
      fail("read");
    }
    const auto from = std::make_reverse_iterator(block.begin() + size);
    const auto found = std::find(from, block.rend(), '\n');
    if (found != block.rend()) {
      end -= found - from;
      break;
    }
    end -= size;
  }
  if (end != about.st_size && ftruncate(file_, end) != 0) {
    fail("truncated to its last complete line");
  }
  was_empty_ = end == 0;
}

void AppendFile::fail(const char* what) const {
  throw SystemError(str_cat(
      "[tracking] '",
      printable(path_.string()),
      "' cannot be ",
      what,
      ": ",
      std::strerror(errno)));
}

double wall_seconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string this_host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

} // namespace accelerate
