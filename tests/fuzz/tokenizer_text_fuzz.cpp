// SPDX-License-Identifier: Apache-2.0
// Any bytes as text for each kind of tokenizer: rejected as not UTF-8, or
// encoded into arrays of equal length with ordered offsets inside the text;
// byte-level tokenizers restore the text.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/text.h"
#include "require.h"

namespace {

using accelerate::Tokenizer;

const std::vector<Tokenizer>& tokenizers() {
  static const std::vector<Tokenizer> all = [] {
    const auto data = std::filesystem::path(TEST_REFERENCE_DIR) / "text";
    std::vector<Tokenizer> made;
    for (const char* kind : {"gpt2", "llama3", "roberta", "wordpiece"}) {
      made.push_back(
          Tokenizer::from_file(data / (std::string(kind) + ".json")));
    }
    return made;
  }();
  return all;
}

int32_t count_code_points(std::string_view text) {
  int32_t count = 0;
  for (const char byte : text) {
    count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  }
  return count;
}

void check(const Tokenizer& tokenizer, std::string_view text) {
  const auto encoding = tokenizer.encode(text, {.add_special_tokens = false});
  const size_t size = encoding.ids.size();
  require(encoding.type_ids.size() == size);
  require(encoding.offsets.size() == size);
  require(encoding.word_ids.size() == size);
  const int32_t end = count_code_points(text);
  for (size_t i = 0; i < size; ++i) {
    const auto span = encoding.offsets[i];
    require(0 <= span.begin && span.begin <= span.end && span.end <= end);
    require(i == 0 || encoding.word_ids[i] >= encoding.word_ids[i - 1]);
  }
  tokenizer.decode(encoding.ids, false);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  // A copy of the exact size, so that one byte too far is seen.
  const std::vector<char> copy(data, data + size);
  const std::string_view text(copy.data(), copy.size());
  try {
    for (const Tokenizer& tokenizer : tokenizers()) {
      check(tokenizer, text);
    }
    // Added tokens need not round-trip; each of them contains one of these
    // letters.
    if (text.find_first_of("<wG") == text.npos) {
      const auto encoding = tokenizers()[0].encode(text);
      require(tokenizers()[0].decode(encoding.ids, false) == text);
    }
  } catch (const accelerate::InvalidUtf8Error& e) {
    require(e.position() < size);
  }
  return 0;
}
