// SPDX-License-Identifier: Apache-2.0
// A hash map from strings to ids for vocabularies: flat, filled once.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::text {

/// A hash that is extended byte by byte, so that one pass over a word yields
/// the hashes of all its prefixes.
struct PrefixHash {
  uint64_t value = 0x9E3779B97F4A7C15;

  void add(char byte) {
    value = (value ^ static_cast<unsigned char>(byte)) * 0xFF51AFD7ED558CCD;
    value ^= value >> 32;
  }
  void add(std::string_view bytes) {
    for (const char byte : bytes) {
      add(byte);
    }
  }
};

inline PrefixHash hash_of(std::string_view bytes) {
  PrefixHash hash;
  hash.add(bytes);
  return hash;
}

/// Open addressing, at most half full. Not thread-safe while it is filled.
class StringMap {
 public:
  static constexpr int32_t kNone = -1;

  explicit StringMap(size_t expected = 0) { rehash(expected); }

  size_t size() const { return size_; }

  int32_t find(std::string_view key) const { return find(hash_of(key), key); }

  int32_t find(PrefixHash hash, std::string_view key) const {
    return find(hash, {}, key);
  }

  /// The id of `prefix` + `rest`, whose hash is `hash`.
  int32_t find(PrefixHash hash, std::string_view prefix, std::string_view rest)
      const {
    const auto tag = static_cast<uint32_t>(hash.value);
    for (size_t at = hash.value >> shift_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.id == kNone) {
        return kNone;
      }
      if (slot.tag == tag && slot.length == prefix.size() + rest.size() &&
          key(slot).substr(0, prefix.size()) == prefix &&
          key(slot).substr(prefix.size()) == rest) {
        return slot.id;
      }
    }
  }

  /// Adds a key, or replaces the id of an existing one. `id` is not negative.
  void set(std::string_view key, int32_t id) {
    if (2 * (size_ + 1) > slots_.size()) {
      rehash(2 * (size_ + 1));
    }
    const PrefixHash hash = hash_of(key);
    Slot& slot = slot_for(hash, key);
    if (slot.id == kNone) {
      slot.tag = static_cast<uint32_t>(hash.value);
      slot.begin = static_cast<uint32_t>(keys_.size());
      slot.length = static_cast<uint32_t>(key.size());
      keys_ += key;
      ++size_;
    }
    slot.id = id;
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    uint32_t begin = 0;
    uint32_t length = 0;
    int32_t id = kNone;
  };

  std::string_view key(const Slot& slot) const {
    return std::string_view(keys_).substr(slot.begin, slot.length);
  }

  Slot& slot_for(PrefixHash hash, std::string_view wanted) {
    size_t at = hash.value >> shift_;
    while (slots_[at].id != kNone && key(slots_[at]) != wanted) {
      at = (at + 1) & mask_;
    }
    return slots_[at];
  }

  void rehash(size_t expected) {
    const size_t capacity = std::bit_ceil(2 * expected + 16);
    std::vector<Slot> old = std::move(slots_);
    slots_.assign(capacity, Slot{});
    mask_ = capacity - 1;
    shift_ = 64 - std::countr_zero(capacity);
    for (const Slot& slot : old) {
      if (slot.id != kNone) {
        slot_for(hash_of(key(slot)), key(slot)) = slot;
      }
    }
  }

  std::vector<Slot> slots_;
  std::string keys_;
  size_t size_ = 0;
  size_t mask_ = 0;
  int shift_ = 0;
};

} // namespace accelerate::text
