// SPDX-License-Identifier: Apache-2.0
// Files that appear under their name only when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// Writes to a temporary file in the same folder, which `commit` renames.
/// Without `commit`, the destructor removes the temporary file, and an existing
/// file is unchanged. A symbolic link of that name is replaced, not followed.
/// The new file gets the permissions of the file that it replaces. Anything but
/// a file (a folder, a device, a pipe) is not replaced. Throws `SystemError`.
class ACCELERATE_INTERNAL AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Reserves space, so that a full disk is detected early.
  void reserve(std::uint64_t num_bytes);
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Continues at `offset`, for data that does not arrive in file order.
  void seek(std::uint64_t offset);
  /// Makes the file visible. With `sync`, also waits until it is on disk.
  void commit(bool sync = true);

 private:
  void write_through(std::span<const std::byte> bytes);
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::vector<std::byte> pending_;
  /// The offset of the next byte to write.
  std::uint64_t position_ = 0;
  int file_ = -1;
  bool is_committed_ = false;
};

/// Throws the `SystemError` that an `AtomicFile` would throw because something
/// other than a file exists under that name. Call it for an early check.
void check_replaceable(const std::filesystem::path& target);

/// Flushes the names in a folder to disk, so that they survive a power failure.
/// Throws `SystemError`.
void sync_folder(const std::filesystem::path& folder);

} // namespace accelerate
