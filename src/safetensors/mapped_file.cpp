// SPDX-License-Identifier: Apache-2.0
#include "safetensors/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate::safetensors {
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

[[noreturn]] void fail(
    const std::filesystem::path& path,
    const std::string& why) {
  throw SystemError(str_cat(
      "[safetensors] '",
      path.string(),
      "' cannot be read: ",
      why,
      "; give a readable safetensors file"));
}

} // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Without O_NONBLOCK a pipe of that name would wait for a writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status = {};
  if (file.value() < 0 || fstat(file.value(), &status) != 0) {
    fail(path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    fail(path, S_ISDIR(status.st_mode) ? "it is a folder" : "it is no file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    return; // An empty mapping is an error for the system.
  }
  void* begin = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (begin == MAP_FAILED) {
    fail(path, std::strerror(errno));
  }
  bytes_ = {static_cast<const std::byte*>(begin), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

} // namespace accelerate::safetensors
