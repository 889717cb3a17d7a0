// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace accelerate::text {

/// The printable characters that represent bytes in byte-level vocabularies.
class ByteAlphabet {
 public:
  ByteAlphabet();
  char32_t character(unsigned char byte) const { return characters_[byte]; }
  /// The byte that a character represents. Empty if it represents none.
  std::optional<char> byte(char32_t c) const;
  std::string encode(std::string_view bytes) const;
  /// The bytes of a token. Empty if a character represents no byte. `token` is
  /// valid UTF-8.
  std::optional<std::string> decode(std::string_view token) const;

  static const ByteAlphabet& instance();

 private:
  std::array<char32_t, 256> characters_;
  std::array<int, 512> bytes_;
};

/// Maps a pair of ids to the rank of its merge and the resulting id.
class MergeMap {
 public:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };

  explicit MergeMap(size_t num_merges);
  void set(int32_t left, int32_t right, Merge merge);
  /// The merge of a pair. Null if the pair does not merge.
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = (key * kMix) >> shift_;; at = (at + 1) & mask_) {
      if (slots_[at].key == key) {
        return &slots_[at].merge;
      }
      if (slots_[at].key == kEmpty) {
        return nullptr;
      }
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static constexpr uint64_t kMix = 0x9E3779B97F4A7C15;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge = {};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

/// A cache of words and their pieces, which is cleared when it is full. Not
/// thread-safe.
class WordCache {
 public:
  /// The pieces of a word. Empty if it is not cached.
  std::span<const Piece> find(uint64_t hash, std::string_view word) const;
  void add(uint64_t hash, std::string_view word, std::span<const Piece> pieces);

 private:
  struct Slot {
    uint64_t hash = 0;
    uint32_t key_begin = 0;
    uint32_t key_size = 0;
    uint32_t pieces_begin = 0;
    uint32_t num_pieces = 0;
  };

  std::vector<Slot> slots_;
  size_t size_ = 0;
  std::string keys_;
  std::vector<Piece> pieces_;
};

/// Memory that is reused across calls.
struct BpeScratch {
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
    uint32_t size;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at;
    int32_t id;
  };
  WordCache cache;
  std::vector<Symbol> symbols;
  std::vector<Candidate> queue;
  std::vector<Piece> pieces;
  std::vector<uint32_t> byte_of;
};

class ByteBpe {
 public:
  struct Settings {
    std::optional<int32_t> unknown_id = {};
    bool fuse_unknown = false;
    /// A word that is a token is never split, whatever the merges say.
    bool ignore_merges = false;
  };

  ByteBpe(const Vocabulary& vocabulary, MergeMap merges, Settings settings);

  /// The pieces of a word given as bytes. They are borrowed from `scratch`.
  std::span<const Piece> tokenize(std::string_view word, BpeScratch& scratch)
      const;

 private:
  void start_symbols(std::string_view word, BpeScratch& scratch) const;
  void add_unknown(uint32_t size, bool is_after_unknown, BpeScratch& scratch)
      const;
  void merge_symbols(BpeScratch& scratch) const;
  void collect_pieces(std::string_view word, BpeScratch& scratch) const;

  MergeMap merges_;
  Settings settings_;
  /// Whole tokens by the bytes that they represent.
  StringMap words_;
  std::array<int32_t, 256> byte_ids_;
};

} // namespace accelerate::text
