// SPDX-License-Identifier: Apache-2.0
// Checksums that detect damaged bytes at memory speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

/// XXH3 with 64 bits: detects accidents, not forgeries. Portable across
/// machines.
class ACCELERATE_INTERNAL Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  /// The checksum of everything added so far, as 16 hexadecimal digits.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The checksum of one piece.
ACCELERATE_INTERNAL std::string checksum_of(std::span<const std::byte> bytes);
ACCELERATE_INTERNAL std::string checksum_of(std::string_view text);

/// The size of the chunks that `ChunkedChecksum` writes.
inline constexpr std::uint64_t kChecksumChunk = std::uint64_t{4} << 20;

/// Digits per checksum.
inline constexpr std::size_t kChecksumDigits = 16;

/// The checksums of all chunks of `kChecksumChunk` bytes, so that threads and
/// ranks can verify parts of a file. The last chunk may be shorter.
class ACCELERATE_INTERNAL ChunkedChecksum {
 public:
  void add(std::span<const std::byte> bytes);
  /// The checksums of everything added so far: the digits of each chunk, in
  /// order.
  std::string text() const;

 private:
  /// The checksum of the incomplete chunk, if any.
  std::optional<Checksum> chunk_;
  std::uint64_t num_in_chunk_ = 0;
  std::string digests_;
};

/// The `ChunkedChecksum::text` of bytes in memory or mapped, in chunks of
/// `chunk` bytes. Uses all cores.
ACCELERATE_INTERNAL std::string chunked_checksum_of(
    std::span<const std::byte> bytes,
    std::uint64_t chunk = kChecksumChunk);

} // namespace accelerate
