// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed with its object.
#pragma once

#include <unistd.h>

#include <utility>

namespace accelerate {

class UniqueFile {
 public:
  UniqueFile() = default;
  explicit UniqueFile(int file) : file_(file) {}
  ~UniqueFile() { reset(); }
  UniqueFile(UniqueFile&& other) noexcept
      : file_(std::exchange(other.file_, -1)) {}
  UniqueFile& operator=(UniqueFile&& other) noexcept {
    if (this != &other) {
      reset();
      file_ = std::exchange(other.file_, -1);
    }
    return *this;
  }

  int get() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }
  void reset() {
    if (file_ >= 0) {
      close(std::exchange(file_, -1));
    }
  }

 private:
  int file_ = -1;
};

} // namespace accelerate
