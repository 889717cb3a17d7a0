// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.h"

// Everything from the header: machines without the library need no more.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace accelerate {
namespace {

std::string hexadecimal(XXH64_hash_t hash) {
  char text[17];
  std::snprintf(
      text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

} // namespace

struct Checksum::State {
  XXH3_state_t hash;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_INITSTATE(&state_->hash);
  XXH3_64bits_reset(&state_->hash);
}
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->hash, bytes.data(), bytes.size());
}
void Checksum::add(std::string_view text) {
  add(std::as_bytes(std::span(text)));
}

std::string Checksum::text() const {
  return hexadecimal(XXH3_64bits_digest(&state_->hash));
}

std::string checksum_of(std::span<const std::byte> bytes) {
  return hexadecimal(XXH3_64bits(bytes.data(), bytes.size()));
}
std::string checksum_of(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text)));
}

} // namespace accelerate
