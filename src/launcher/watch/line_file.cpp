// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/line_file.h"

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

UniqueFile LineFile::open_same(off_t& size) const {
  UniqueFile file = open_plain_file(path_);
  struct stat about {};
  if (!file || fstat(file.get(), &about) != 0 || device_ != about.st_dev ||
      inode_ != about.st_ino || about.st_size < offset_) {
    return {};
  }
  size = about.st_size;
  return file;
}

bool LineFile::read(size_t& budget, const Take& take) {
  if (inode_ == 0) {
    const UniqueFile file = open_plain_file(path_);
    struct stat about {};
    if (!file || fstat(file.get(), &about) != 0) {
      return true;
    }
    device_ = about.st_dev;
    inode_ = about.st_ino;
  }
  off_t size = 0;
  const UniqueFile file = open_same(size);
  if (!file) {
    return false;
  }
  std::string block;
  size_t most = std::clamp(budget, kLeastBlock, kMaxLine);
  while (offset_ < size && budget > 0) {
    block.resize(std::min<size_t>(most, static_cast<size_t>(size - offset_)));
    block.resize(read_at(file.get(), block.data(), block.size(), offset_));
    const size_t end = block.rfind('\n');
    if (end == std::string::npos && block.size() == most && most < kMaxLine) {
      most = kMaxLine;
      continue;
    }
    budget -= std::min(budget, block.size());
    if (end == std::string::npos) {
      if (block.size() < kMaxLine) {
        break;
      }
      is_skipping_ = true;
      offset_ += static_cast<off_t>(block.size());
      continue;
    }
    const std::string_view lines(block.data(), end + 1);
    for (size_t begin = 0; begin < lines.size();) {
      const size_t length = lines.find('\n', begin) - begin;
      if (!std::exchange(is_skipping_, false)) {
        take(lines.substr(begin, length), offset_ + static_cast<off_t>(begin));
      }
      begin += length + 1;
    }
    offset_ += static_cast<off_t>(end + 1);
  }
  return true;
}

bool LineFile::read_again(off_t begin, off_t end, const Take& take) const {
  off_t size = 0;
  const UniqueFile file = open_same(size);
  if (!file) {
    return inode_ == 0;
  }
  end = std::min(end, offset_);
  std::string block;
  while (begin < end) {
    block.resize(std::min<size_t>(kMaxLine, static_cast<size_t>(end - begin)));
    block.resize(read_at(file.get(), block.data(), block.size(), begin));
    const size_t last = block.rfind('\n');
    if (last == std::string::npos) {
      // The block is a part of a line that is too long, or empty at the end of
      // the file.
      if (block.empty()) {
        break;
      }
      begin += static_cast<off_t>(block.size());
      continue;
    }
    const std::string_view lines(block.data(), last + 1);
    for (size_t from = 0; from < lines.size();) {
      const size_t length = lines.find('\n', from) - from;
      take(lines.substr(from, length), begin + static_cast<off_t>(from));
      from += length + 1;
    }
    begin += static_cast<off_t>(last + 1);
  }
  return true;
}

} // namespace accelerate
