// SPDX-License-Identifier: Apache-2.0
// Maps tokens to ids and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/string_map.h"

namespace accelerate::text {

/// Higher ids are rejected. No model has as many tokens, and the limit bounds
/// the size of the table.
constexpr int32_t kMaxTokenId = (1 << 22) - 1;

class Vocabulary {
 public:
  /// `id` is between 0 and `kMaxTokenId`.
  void add(std::string_view token, int32_t id) {
    ids_.set(token, id);
    if (id >= id_end()) {
      tokens_.resize(static_cast<size_t>(id) + 1);
      is_present_.resize(static_cast<size_t>(id) + 1);
    }
    tokens_[static_cast<size_t>(id)] = token;
    is_present_[static_cast<size_t>(id)] = true;
  }

  /// The id of a token, or `StringMap::kNone` if it is not in the vocabulary.
  int32_t id(std::string_view token) const { return ids_.find(token); }

  /// The token with this id. Null if there is none.
  const std::string* token(int32_t id) const {
    return id >= 0 && id < id_end() && is_present_[static_cast<size_t>(id)]
               ? &tokens_[static_cast<size_t>(id)]
               : nullptr;
  }

  const StringMap& ids() const { return ids_; }
  size_t size() const { return ids_.size(); }
  /// One more than the largest id.
  int32_t id_end() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  StringMap ids_;
  std::vector<std::string> tokens_;
  std::vector<bool> is_present_;
};

/// A token inside a word, and its range of bytes.
struct Piece {
  int32_t id;
  uint32_t begin;
  uint32_t end;
};

} // namespace accelerate::text
