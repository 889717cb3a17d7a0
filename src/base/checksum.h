// SPDX-License-Identifier: Apache-2.0
// Tells damaged bytes from whole ones, at the speed of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

/// XXH3 with 64 bits: finds accidents, not forgeries. The same on every
/// machine.
class ACCELERATE_API Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  /// Of all that was added: 16 hexadecimal digits.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Of one piece.
ACCELERATE_API std::string checksum_of(std::span<const std::byte> bytes);
ACCELERATE_API std::string checksum_of(std::string_view text);

/// The size of the chunks that `ChunkedChecksum` writes.
inline constexpr std::uint64_t kChecksumChunk = std::uint64_t{4} << 20;

/// Digits of one checksum.
inline constexpr std::size_t kChecksumDigits = 16;

/// The checksums of all chunks of `kChecksumChunk` bytes, so that threads and
/// ranks can verify parts of a file. The last chunk may be shorter.
class ACCELERATE_API ChunkedChecksum {
 public:
  void add(std::span<const std::byte> bytes);
  /// Of all that was added: the digits of each chunk, in order.
  std::string text() const;

 private:
  /// Of the chunk that is not full; none if there is none.
  std::optional<Checksum> chunk_;
  std::uint64_t num_in_chunk_ = 0;
  std::string digests_;
};

/// The same for bytes that are in memory or mapped, in chunks of `chunk` bytes.
/// Uses all cores.
ACCELERATE_API std::string chunked_checksum_of(
    std::span<const std::byte> bytes,
    std::uint64_t chunk = kChecksumChunk);

} // namespace accelerate
