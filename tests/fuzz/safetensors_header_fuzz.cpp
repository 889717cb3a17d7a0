// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: rejected with one of the causes, or parsed
// to views that cover the data and survive a round trip.
#include <algorithm>
#include <cstdint>

#include "accelerate/safetensors.h"
#include "require.h"

namespace st = accelerate::safetensors;

namespace {

bool is_same(const st::TensorView& a, const st::TensorView& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
         std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end());
}

void check_round_trip(const st::Contents& contents) {
  const auto bytes = st::serialize(contents.tensors, contents.metadata);
  const auto again = st::parse(bytes, "again");
  require(again.metadata == contents.metadata);
  require(again.tensors.size() == contents.tensors.size());
  for (const auto& tensor : contents.tensors) {
    require(std::any_of(
        again.tensors.begin(), again.tensors.end(), [&](const auto& other) {
          return is_same(tensor, other);
        }));
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  // A copy of the exact size, so that one byte too far is seen.
  const std::vector<std::uint8_t> copy(data, data + size);
  try {
    const auto contents = st::parse(std::as_bytes(std::span(copy)), "input");
    unsigned sum = 0;
    for (const auto& tensor : contents.tensors) {
      for (const auto byte : tensor.data) {
        sum += std::to_integer<unsigned>(byte);
      }
    }
    require(sum < ~0u);
    check_round_trip(contents);
  } catch (const st::SafetensorsError&) {
  }
  return 0;
}
