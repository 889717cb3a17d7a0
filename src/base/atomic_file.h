// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Writes to a temporary sibling; `commit` gives it the final name. Without
/// `commit` the sibling goes with the object, and an old file stays as it was.
/// A link of that name is replaced, not followed; a file that was there before
/// hands its rights on; anything else (a folder, a device, a pipe) is refused.
/// Throws `SystemError`.
class ACCELERATE_API AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Asks for the space, so that a full disk is known before the work.
  void reserve(std::uint64_t num_bytes);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Goes on from here, for what does not come in the order of the file.
  void seek(std::uint64_t offset);
  /// Makes the file visible. `sync`: and waits until it is on the disk.
  void commit(bool sync = true);

 private:
  void write_through(std::span<const std::byte> bytes);
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::vector<std::byte> pending_;
  /// Of what comes next.
  std::uint64_t position_ = 0;
  int file_ = -1;
  bool is_committed_ = false;
};

/// Throws `SystemError` where an `AtomicFile` of that name would be refused for
/// what is there already: for a look before the work.
ACCELERATE_API void check_replaceable(const std::filesystem::path& target);

/// Brings the names in a folder to the disk: without it a power cut can lose
/// them. Throws `SystemError`.
ACCELERATE_API void sync_folder(const std::filesystem::path& folder);

} // namespace accelerate
