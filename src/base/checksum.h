// SPDX-License-Identifier: Apache-2.0
// Tells damaged bytes from whole ones, at the speed of memory.
#pragma once

#include <cstddef>
#include <memory>
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

} // namespace accelerate
