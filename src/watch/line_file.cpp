// SPDX-License-Identifier: Apache-2.0
#include "watch/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace accelerate {
namespace {

size_t read_at(int file, char* bytes, size_t size, off_t offset) {
  size_t total = 0;
  while (total < size) {
    const ssize_t got = pread(
        file, bytes + total, size - total, offset + static_cast<off_t>(total));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      break;
    }
    total += static_cast<size_t>(got);
  }
  return total;
}

} // namespace

UniqueFile open_plain_file(const std::filesystem::path& path) {
  UniqueFile file(open(
      path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat about {};
  if (file && (fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode))) {
    file.reset();
  }
  return file;
}

std::string read_tail(const std::filesystem::path& path, size_t limit) {
  const UniqueFile file = open_plain_file(path);
  struct stat about {};
  if (!file || fstat(file.get(), &about) != 0) {
    return {};
  }
  const auto size = std::min(static_cast<size_t>(about.st_size), limit);
  std::string text(size, '\0');
  const off_t begin = about.st_size - static_cast<off_t>(size);
  text.resize(read_at(file.get(), text.data(), size, begin));
  const auto line = begin > 0 ? text.find('\n') : std::string::npos;
  return line == std::string::npos ? text : text.substr(line + 1);
}

bool LineFile::read(
    size_t& budget,
    const std::function<void(std::string_view)>& take) {
  const UniqueFile file = open_plain_file(path_);
  struct stat about {};
  if (!file || fstat(file.get(), &about) != 0) {
    return inode_ == 0;
  }
  if (inode_ == 0) {
    device_ = about.st_dev;
    inode_ = about.st_ino;
  }
  if (device_ != about.st_dev || inode_ != about.st_ino ||
      about.st_size < offset_) {
    return false;
  }
  std::string block;
  while (offset_ < about.st_size && budget > 0) {
    block.resize(std::min<size_t>(
        kMaxLine, static_cast<size_t>(about.st_size - offset_)));
    block.resize(read_at(file.get(), block.data(), block.size(), offset_));
    budget -= std::min(budget, block.size());
    const size_t end = block.rfind('\n');
    if (end == std::string::npos) {
      if (block.size() < kMaxLine) {
        break;
      }
      is_skipping_ = true;
      offset_ += static_cast<off_t>(block.size());
      continue;
    }
    std::string_view rest(block.data(), end + 1);
    while (!rest.empty()) {
      const auto line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(line.size() + 1);
      if (!std::exchange(is_skipping_, false)) {
        take(line);
      }
    }
    offset_ += static_cast<off_t>(end + 1);
  }
  return true;
}

} // namespace accelerate
