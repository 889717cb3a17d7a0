// SPDX-License-Identifier: Apache-2.0
#include "core/base/small_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

constexpr int kSilenceMs = 5000;

class OpenFile {
 public:
  // O_NONBLOCK, because opening a pipe would wait for a writer.
  explicit OpenFile(const std::filesystem::path& path)
      : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (file_ >= 0) {
      close(file_);
    }
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const { return file_; }

 private:
  int file_;
};

} // namespace

std::string read_small_file(
    const std::filesystem::path& path,
    const std::string& what,
    size_t limit) {
  const auto refuse = [&](const std::string& problem, const char* advice) {
    throw ConfigError(str_cat(
        "[config] ", what, " '", path.string(), "' ", problem, ". ", advice));
  };
  const OpenFile file(path);
  struct stat facts {};
  if (file.get() < 0 || fstat(file.get(), &facts) != 0) {
    refuse(
        str_cat("cannot be read (", std::strerror(errno), ")"),
        "Check the path and its permissions");
  }
  if (S_ISDIR(facts.st_mode)) {
    refuse("is a folder", "Pass the path of a file");
  }
  std::string text;
  char buffer[16384];
  while (text.size() <= limit) {
    pollfd waited{file.get(), POLLIN, 0};
    if (poll(&waited, 1, kSilenceMs) == 0) {
      refuse("is a pipe without a writer", "Pass a plain file");
    }
    const auto size = read(file.get(), buffer, sizeof(buffer));
    if (size == 0) {
      return text;
    }
    if (size > 0) {
      text.append(buffer, static_cast<size_t>(size));
    } else if (errno != EAGAIN && errno != EINTR) {
      refuse(
          str_cat("cannot be read (", std::strerror(errno), ")"),
          "Check the disk");
    }
  }
  refuse(
      str_cat("has more than ", limit, " bytes"),
      "Check that this is the right file");
  return text;
}

} // namespace accelerate
