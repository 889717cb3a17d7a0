// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) {
      close(value_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

} // namespace

MappedFile::MappedFile(
    const std::filesystem::path& path,
    std::string_view where,
    std::string_view kind) {
  const auto fail = [&](const char* why) {
    throw SystemError(str_cat(
        "[",
        where,
        "] '",
        path.string(),
        "' cannot be read: ",
        why,
        "; give a readable ",
        kind));
  };
  // Without O_NONBLOCK a pipe of that name would wait for a writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status = {};
  if (file.value() < 0 || fstat(file.value(), &status) != 0) {
    fail(std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    fail(S_ISDIR(status.st_mode) ? "it is a folder" : "it is no file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    return; // An empty mapping is an error for the system.
  }
  // Not populated: the system maps around each fault, which takes less time
  // than mapping all ahead, and who wants one tensor pays for no other.
  void* begin = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (begin == MAP_FAILED) {
    fail(std::strerror(errno));
  }
  bytes_ = {static_cast<const std::byte*>(begin), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

} // namespace accelerate
