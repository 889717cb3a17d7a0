// SPDX-License-Identifier: Apache-2.0
// Any bytes as a pickle and as an archive of torch.save: rejected, or parsed to
// values that can be traversed.
#include <cstdint>
#include <set>

#include "accelerate/error.h"
#include "core/safetensors/pickle.h"
#include "core/safetensors/stored_zip.h"
#include "require.h"

namespace st = accelerate::safetensors;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(
      reinterpret_cast<const std::byte*>(data), size);
  try {
    const st::Pickle pickle(bytes, "input");
    // Values may form cycles.
    std::set<const st::PickleValue*> seen;
    std::vector<const st::PickleValue*> left = {&pickle.root()};
    while (!left.empty()) {
      const st::PickleValue* value = left.back();
      left.pop_back();
      if (seen.insert(value).second) {
        left.insert(left.end(), value->items.begin(), value->items.end());
        value->find("key");
        value->is_call_of("os system");
      }
    }
    require(seen.size() <= size);
  } catch (const accelerate::DataError&) {
  }
  try {
    const st::StoredZip zip(bytes, "input");
    require(zip.entry("data.pkl").size() <= size);
  } catch (const accelerate::DataError&) {
  }
  return 0;
}
