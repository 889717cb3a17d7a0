// SPDX-License-Identifier: Apache-2.0
#include "core/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"

namespace accelerate {

MappedFile::MappedFile(
    const std::filesystem::path& path,
    std::string_view where,
    std::string_view kind) {
  const auto fail = [&](const char* why) {
    throw SystemError(str_cat(
        "[",
        where,
        "] Cannot read '",
        path.string(),
        "': ",
        why,
        ". Pass a readable ",
        kind));
  };
  // O_NONBLOCK, because opening a pipe would wait for a writer.
  const UniqueFile file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status = {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    fail(std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    fail(S_ISDIR(status.st_mode) ? "it is a folder" : "it is not a file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    return; // the system rejects an empty mapping
  }
  // No MAP_POPULATE: the kernel maps pages around each fault, which is faster
  // than mapping everything, and a reader of one tensor reads no other.
  void* begin = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
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

void populate(std::span<const std::byte> mapped) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  const auto start = begin / page * page;
  madvise(
      reinterpret_cast<void*>(start),
      begin + mapped.size() - start,
      MADV_POPULATE_READ);
}

} // namespace accelerate
