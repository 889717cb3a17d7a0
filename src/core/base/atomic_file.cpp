// SPDX-License-Identifier: Apache-2.0
#include "core/base/atomic_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"

namespace accelerate {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : ".";
}

std::filesystem::path sibling_of(const std::filesystem::path& target) {
  // Truncated, so that the temporary name fits whenever the target's does.
  const std::string name = target.filename().string().substr(0, 200);
  std::random_device random;
  return folder_of(target) /
         str_cat('.', name, '.', getpid(), '-', random(), ".tmp");
}

// Linux writes at most 2 GiB at once anyway.
constexpr std::size_t kMaxWriteBytes = std::size_t{1} << 30;
// Smaller pieces are buffered, because one system call per bias would be slow.
constexpr std::size_t kPendingBytes = std::size_t{1} << 18;

const char* way_out(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space and try again";
    case EFBIG:
      return "Raise the limit on file sizes (ulimit -f), or split the file";
    case ENOENT:
      return "Create the folder first";
    case EISDIR:
      return "Pass the name of a file";
    default:
      return "Check the disk and the permissions of the folder";
  }
}

/// Throws `SystemError` with the cause in errno.
[[noreturn]] void refuse(
    const std::filesystem::path& target,
    const char* what) {
  const int error = errno;
  throw SystemError(str_cat(
      "[write] Cannot ",
      what,
      " '",
      target.string(),
      "': ",
      std::strerror(error),
      ". ",
      way_out(error)));
}

} // namespace

void check_replaceable(const std::filesystem::path& target) {
  std::error_code ignored;
  if (!target.has_filename() ||
      std::filesystem::is_directory(target, ignored)) {
    errno = EISDIR;
    refuse(target, "write");
  }
  struct stat old {};
  if (lstat(target.c_str(), &old) == 0 && !S_ISREG(old.st_mode) &&
      !S_ISLNK(old.st_mode)) {
    throw SystemError(str_cat(
        "[write] '",
        target.string(),
        "' is a device, a pipe or a socket. Pass the name of a plain file"));
  }
}

void sync_folder(const std::filesystem::path& path) {
  const UniqueFile folder(
      open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: the file system does not support fsync of folders.
  if (!folder || (fsync(folder.get()) != 0 && errno != EINVAL)) {
    refuse(path, "flush");
  }
}

AtomicFile::AtomicFile(std::filesystem::path target)
    : target_(std::move(target)), temporary_(sibling_of(target_)) {
  check_replaceable(target_);
  // 0666 lets the umask decide, as for any other file.
  file_ =
      open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0) {
    fail("create");
  }
  struct stat old {};
  if (stat(target_.c_str(), &old) == 0 &&
      fchmod(file_, old.st_mode & 07777) != 0) {
    close(file_);
    unlink(temporary_.c_str());
    fail("keep the permissions of");
  }
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) {
    close(file_);
  }
  if (!is_committed_) {
    unlink(temporary_.c_str());
  }
}

void AtomicFile::fail(const char* what) const {
  refuse(target_, what);
}

void AtomicFile::reserve(std::uint64_t num_bytes) {
  if (num_bytes == 0) {
    return;
  }
  if (fallocate(file_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(num_bytes)) !=
          0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    fail("write");
  }
}

void AtomicFile::seek(std::uint64_t offset) {
  if (offset == position_) {
    return;
  }
  write_through(pending_);
  pending_.clear();
  if (lseek(file_, static_cast<off_t>(offset), SEEK_SET) < 0) {
    fail("write");
  }
  position_ = offset;
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  position_ += bytes.size();
  if (pending_.size() + bytes.size() > kPendingBytes) {
    write_through(pending_);
    pending_.clear();
  }
  if (bytes.size() > kPendingBytes) {
    write_through(bytes);
  } else {
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto count =
        ::write(file_, bytes.data(), std::min(bytes.size(), kMaxWriteBytes));
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      fail("write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::commit(bool sync) {
  write_through(pending_);
  if (sync && fsync(file_) != 0) {
    fail("flush");
  }
  // Some file systems report a failed write only here.
  if (close(std::exchange(file_, -1)) != 0) {
    fail("write");
  }
  if (rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail("rename");
  }
  is_committed_ = true;
  if (sync) {
    sync_folder(folder_of(target_));
  }
}

} // namespace accelerate
