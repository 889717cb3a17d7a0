// SPDX-License-Identifier: Apache-2.0
#include "core/base/file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/parallel_for.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

// Below this size, starting a thread takes longer than it saves.
constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxThreads = 4;

} // namespace

FileReader::FileReader(std::filesystem::path path, std::string_view where)
    : path_(std::move(path)),
      where_(where),
      // O_NONBLOCK, because opening a pipe would wait for a writer.
      file_(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  const auto fail = [&](const char* why) {
    throw SystemError(str_cat(
        where_,
        " Cannot read '",
        path_.string(),
        "': ",
        why,
        ". Check the path and its permissions"));
  };
  struct stat status = {};
  if (!file_ || fstat(file_.get(), &status) != 0) {
    fail(std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    fail(S_ISDIR(status.st_mode) ? "it is a folder" : "it is not a file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void FileReader::read(std::uint64_t position, std::span<std::byte> bytes)
    const {
  const auto read_piece = [&](std::size_t index) {
    const std::size_t begin = index * kPieceBytes;
    auto left =
        bytes.subspan(begin).first(std::min(kPieceBytes, bytes.size() - begin));
    auto at = position + begin;
    while (!left.empty()) {
      const ssize_t got =
          pread(file_.get(), left.data(), left.size(), static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got < 0) {
        throw SystemError(str_cat(
            where_,
            " Cannot read '",
            path_.string(),
            "': ",
            std::strerror(errno),
            ". Check the disk"));
      }
      if (got == 0) {
        throw DataError(str_cat(
            where_,
            " '",
            path_.string(),
            "' ends at byte ",
            at,
            ", but its data should continue to byte ",
            position + bytes.size(),
            ". The file was truncated. Write it again"));
      }
      left = left.subspan(static_cast<std::size_t>(got));
      at += static_cast<std::uint64_t>(got);
    }
  };
  parallel_for(
      (bytes.size() + kPieceBytes - 1) / kPieceBytes, kMaxThreads, read_piece);
}

} // namespace accelerate
