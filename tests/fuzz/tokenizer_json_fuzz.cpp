// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tokenizer.json: rejected with a message, or a tokenizer that
// encodes and decodes.
#include <cstdint>
#include <string_view>

#include "accelerate/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = accelerate::Tokenizer::from_json(json);
    const accelerate::EncodeOptions options = {
        .truncation = accelerate::Truncation{.max_length = 40, .stride = 1},
        .padding = accelerate::Padding{}};
    for (const char* text : {"", "Hello wörld 123!", " \n <mask> it's 日本"}) {
      const auto encoding = tokenizer.encode({text, "a b"}, options);
      tokenizer.decode(encoding.ids, false);
    }
  } catch (const accelerate::ConfigError&) {
  } catch (const accelerate::UsageError&) {
  }
  return 0;
}
