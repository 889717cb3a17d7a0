// SPDX-License-Identifier: Apache-2.0
// Added tokens, which are found in the text before all other steps.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace accelerate::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  /// Only matches if no letter, digit or underscore is adjacent.
  bool single_word = false;
  /// Also matches the spaces before (after) the token.
  bool lstrip = false;
  bool rstrip = false;
  /// Matches in normalised text. The token itself is also normalised.
  bool normalized = true;
  bool special = false;
  /// The string to match, which is also what the id decodes to: the content, or
  /// the normalised content.
  std::string pattern = {};
};

/// Finds the longest of several strings at the leftmost position. Immutable
/// once filled.
class TokenFinder {
 public:
  struct Match {
    size_t begin;
    size_t end;
    size_t token;
  };

  bool is_empty() const { return nodes_.size() == 1; }
  /// Adds a string for `token`. Returns false if another token already has it.
  bool add(std::string_view pattern, size_t token);
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  static constexpr int64_t kNoToken = -1;
  struct Node {
    std::unordered_map<char, size_t> next;
    int64_t token = kNoToken;
  };

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_ = {};
};

/// The position of an added token in a text, including the spaces that belong
/// to it.
struct AddedTokenMatch {
  size_t begin;
  size_t end;
  const AddedToken* token;
};

/// The added tokens of a tokenizer. Immutable once filled.
class AddedTokens {
 public:
  /// False if another token already has the pattern.
  bool add(AddedToken token);

  const std::vector<AddedToken>& all() const { return tokens_; }
  const AddedToken* find_id(int32_t id) const;
  const AddedToken* find_content(std::string_view content) const;

  bool has(bool normalized) const { return !finder(normalized).is_empty(); }
  /// Finds the first match at or after `taken`, the end of the previous match.
  /// Considers the tokens with this value of `normalized`.
  std::optional<AddedTokenMatch>
  find(std::string_view text, bool normalized, size_t taken) const;

 private:
  const TokenFinder& finder(bool normalized) const {
    return normalized ? in_normalized_ : in_original_;
  }

  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  TokenFinder in_original_;
  TokenFinder in_normalized_;
};

} // namespace accelerate::text
