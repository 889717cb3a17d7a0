// SPDX-License-Identifier: Apache-2.0
#include "text/byte_bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "text/utf8.h"

namespace accelerate::text {
namespace {

using Symbol = BpeScratch::Symbol;
using Candidate = BpeScratch::Candidate;

constexpr size_t kCacheSlots = size_t{1} << 15;
constexpr size_t kMaxCachedWord = 128;

// Hashes eight bytes at a time, because words are short and hashed often.
uint64_t fast_hash(std::string_view word) {
  uint64_t hash = word.size() * 0x9E3779B97F4A7C15;
  const char* at = word.data();
  size_t left = word.size();
  const auto mix = [&](uint64_t eight) {
    hash = (hash ^ eight) * 0xFF51AFD7ED558CCD;
    hash ^= hash >> 32;
  };
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t eight;
    std::memcpy(&eight, at, 8);
    mix(eight);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, at, left);
  mix(rest);
  return hash;
}

// The merge with the smallest rank comes first, then the leftmost one.
bool is_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

} // namespace

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 0x21 && byte <= 0x7E) ||
                              (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t c = is_printable ? byte : next++;
    characters_[byte] = c;
    bytes_[c] = static_cast<int>(byte);
  }
}

std::optional<char> ByteAlphabet::byte(char32_t c) const {
  if (c >= bytes_.size() || bytes_[c] < 0) {
    return std::nullopt;
  }
  return static_cast<char>(static_cast<unsigned char>(bytes_[c]));
}

std::string ByteAlphabet::encode(std::string_view bytes) const {
  std::string token;
  for (const char byte : bytes) {
    append_code_point(token, character(static_cast<unsigned char>(byte)));
  }
  return token;
}

std::optional<std::string> ByteAlphabet::decode(std::string_view token) const {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const auto found = byte(next_code_point(token, at));
    if (!found) {
      return std::nullopt;
    }
    bytes += *found;
  }
  return bytes;
}

const ByteAlphabet& ByteAlphabet::instance() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

MergeMap::MergeMap(size_t num_merges) {
  const size_t capacity = std::bit_ceil(2 * num_merges + 16);
  slots_.resize(capacity);
  mask_ = capacity - 1;
  shift_ = 64 - std::countr_zero(capacity);
}

void MergeMap::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t at = (key * kMix) >> shift_;
  while (slots_[at].key != kEmpty && slots_[at].key != key) {
    at = (at + 1) & mask_;
  }
  slots_[at] = {key, merge};
}

std::span<const Piece> WordCache::find(uint64_t hash, std::string_view word)
    const {
  if (size_ == 0) {
    return {};
  }
  for (size_t at = hash % kCacheSlots;; at = (at + 1) % kCacheSlots) {
    const Slot& slot = slots_[at];
    if (slot.key_size == 0) {
      return {};
    }
    if (slot.hash == hash && slot.key_size == word.size() &&
        std::memcmp(keys_.data() + slot.key_begin, word.data(), word.size()) ==
            0) {
      return {pieces_.data() + slot.pieces_begin, slot.num_pieces};
    }
  }
}

void WordCache::add(
    uint64_t hash,
    std::string_view word,
    std::span<const Piece> pieces) {
  if (word.size() > kMaxCachedWord || pieces.empty()) {
    return;
  }
  if (size_ == 0 || 2 * (size_ + 1) > kCacheSlots) {
    slots_.assign(kCacheSlots, Slot{});
    size_ = 0;
    keys_.clear();
    pieces_.clear();
  }
  size_t at = hash % kCacheSlots;
  while (slots_[at].key_size != 0) {
    at = (at + 1) % kCacheSlots;
  }
  slots_[at] = {
      hash,
      static_cast<uint32_t>(keys_.size()),
      static_cast<uint32_t>(word.size()),
      static_cast<uint32_t>(pieces_.size()),
      static_cast<uint32_t>(pieces.size())};
  keys_ += word;
  pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  ++size_;
}

ByteBpe::ByteBpe(
    const Vocabulary& vocabulary,
    MergeMap merges,
    Settings settings)
    : merges_(std::move(merges)),
      settings_(settings),
      words_(settings.ignore_merges ? vocabulary.size() : 0) {
  const ByteAlphabet& alphabet = ByteAlphabet::instance();
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto one = static_cast<char>(static_cast<unsigned char>(byte));
    byte_ids_[byte] = vocabulary.id(alphabet.encode({&one, 1}));
  }
  for (int32_t id = 0; settings_.ignore_merges && id < vocabulary.id_end();
       ++id) {
    const std::string* token = vocabulary.token(id);
    if (token == nullptr || vocabulary.id(*token) != id) {
      continue;
    }
    if (const auto bytes = alphabet.decode(*token)) {
      words_.set(*bytes, id);
    }
  }
}

std::span<const Piece> ByteBpe::tokenize(
    std::string_view word,
    BpeScratch& scratch) const {
  const uint64_t hash = fast_hash(word);
  if (const auto known = scratch.cache.find(hash, word); !known.empty()) {
    return known;
  }
  scratch.pieces.clear();
  const int32_t whole =
      settings_.ignore_merges ? words_.find(word) : StringMap::kNone;
  if (whole != StringMap::kNone) {
    scratch.pieces.push_back({whole, 0, static_cast<uint32_t>(word.size())});
  } else {
    start_symbols(word, scratch);
    merge_symbols(scratch);
    collect_pieces(word, scratch);
  }
  scratch.cache.add(hash, word, scratch.pieces);
  return scratch.pieces;
}

// Starts with one symbol per byte. Its size is that of the byte's printable
// character in UTF-8, as in the Rust library. The offsets show this if bytes
// are not in the vocabulary and therefore skipped.
void ByteBpe::start_symbols(std::string_view word, BpeScratch& scratch) const {
  scratch.symbols.clear();
  bool is_after_unknown = false;
  for (const char byte : word) {
    const auto value = static_cast<unsigned char>(byte);
    const uint32_t size =
        ByteAlphabet::instance().character(value) < 0x80 ? 1 : 2;
    const int32_t id = byte_ids_[value];
    if (id != StringMap::kNone) {
      scratch.symbols.push_back({id, 0, 0, size});
      is_after_unknown = false;
    } else if (settings_.unknown_id) {
      add_unknown(size, is_after_unknown, scratch);
      is_after_unknown = true;
    }
  }
  const auto count = static_cast<int32_t>(scratch.symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    scratch.symbols[static_cast<size_t>(i)].previous = i - 1;
    scratch.symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
}

void ByteBpe::add_unknown(
    uint32_t size,
    bool is_after_unknown,
    BpeScratch& scratch) const {
  if (is_after_unknown && settings_.fuse_unknown) {
    scratch.symbols.back().size += size;
  } else {
    scratch.symbols.push_back({*settings_.unknown_id, 0, 0, size});
  }
}

void ByteBpe::merge_symbols(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  const auto symbol = [&](int32_t at) -> Symbol& {
    return symbols[static_cast<size_t>(at)];
  };
  const auto candidate = [&](int32_t left, int32_t right) {
    if (const auto* found = merges_.find(symbol(left).id, symbol(right).id)) {
      queue.push_back({found->rank, left, found->id});
      return true;
    }
    return false;
  };
  queue.clear();
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) {
    candidate(i, i + 1);
  }
  std::make_heap(queue.begin(), queue.end(), is_later);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), is_later);
    const Candidate top = queue.back();
    queue.pop_back();
    Symbol& left = symbol(top.at);
    if (left.size == 0 || left.next < 0) {
      continue;
    }
    // The pair may have changed since it was queued.
    const auto* merge = merges_.find(left.id, symbol(left.next).id);
    if (merge == nullptr || merge->id != top.id) {
      continue;
    }
    Symbol& right = symbol(left.next);
    left.id = top.id;
    left.size += right.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) {
      symbol(left.next).previous = top.at;
    }
    if (left.previous >= 0 && candidate(left.previous, top.at)) {
      std::push_heap(queue.begin(), queue.end(), is_later);
    }
    if (left.next >= 0 && candidate(top.at, left.next)) {
      std::push_heap(queue.begin(), queue.end(), is_later);
    }
  }
}

void ByteBpe::collect_pieces(std::string_view word, BpeScratch& scratch) const {
  // Maps each byte of the printable form to the byte of the word it belongs to.
  std::vector<uint32_t>& byte_of = scratch.byte_of;
  byte_of.clear();
  for (size_t i = 0; i < word.size(); ++i) {
    const auto value = static_cast<unsigned char>(word[i]);
    const size_t size =
        ByteAlphabet::instance().character(value) < 0x80 ? 1 : 2;
    byte_of.insert(byte_of.end(), size, static_cast<uint32_t>(i));
  }
  uint32_t begin = 0;
  for (const Symbol& symbol : scratch.symbols) {
    if (symbol.size == 0) {
      continue;
    }
    const uint32_t end = begin + symbol.size;
    scratch.pieces.push_back({symbol.id, byte_of[begin], byte_of[end - 1] + 1});
    begin = end;
  }
}

} // namespace accelerate::text
