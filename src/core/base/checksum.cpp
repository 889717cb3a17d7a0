// SPDX-License-Identifier: Apache-2.0
#include "core/base/checksum.h"

// Uses the header-only form, so that target machines need no library.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "core/base/parallel_for.h"

namespace accelerate {
namespace {

std::string hexadecimal(XXH64_hash_t hash) {
  char text[kChecksumDigits + 1];
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

void ChunkedChecksum::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (!chunk_) {
      chunk_.emplace();
    }
    const auto piece = bytes.first(static_cast<std::size_t>(
        std::min<std::uint64_t>(bytes.size(), kChecksumChunk - num_in_chunk_)));
    chunk_->add(piece);
    num_in_chunk_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (num_in_chunk_ == kChecksumChunk) {
      digests_ += chunk_->text();
      chunk_.reset();
      num_in_chunk_ = 0;
    }
  }
}

std::string ChunkedChecksum::text() const {
  return chunk_ ? digests_ + chunk_->text() : digests_;
}

std::string chunked_checksum_of(
    std::span<const std::byte> bytes,
    std::uint64_t chunk) {
  const std::size_t num_chunks = (bytes.size() + chunk - 1) / chunk;
  std::string digests(num_chunks * kChecksumDigits, '0');
  char* const out = digests.data();
  const auto num_cores = std::thread::hardware_concurrency();
  parallel_for(num_chunks, num_cores, [&](std::size_t i) {
    const auto rest = bytes.subspan(i * chunk);
    const auto digest =
        checksum_of(rest.first(std::min<std::uint64_t>(rest.size(), chunk)));
    std::copy(digest.begin(), digest.end(), out + i * kChecksumDigits);
  });
  return digests;
}

} // namespace accelerate
