// SPDX-License-Identifier: Apache-2.0
// Any text as a sharded index: rejected, or parsed and written again unchanged.
#include <cstdint>
#include <cstdlib>

#include "accelerate/files/safetensors_index.h"

namespace st = accelerate::safetensors;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const st::ShardIndex index = st::parse_index(text, "input");
    if (st::parse_index(st::format_index(index), "again") != index) {
      std::abort();
    }
  } catch (const st::InvalidIndexError&) {
  }
  return 0;
}
