// SPDX-License-Identifier: Apache-2.0
#include "training/run/input_watch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/stable_hash.h"

namespace accelerate {
namespace {

constexpr size_t kNumSteps = 3;
// The first elements of a batch are enough to distinguish it from others.
constexpr int64_t kMostElements = 4096;

} // namespace

void InputWatch::note(const at::Tensor& input) {
  if (is_over_ || !input.defined() || input.layout() != at::kStrided ||
      input.is_meta() || input.is_quantized() || input.numel() == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  const auto begin = input.detach().flatten().narrow(
      0, 0, std::min(input.numel(), kMostElements));
  const auto plain = begin.resolve_conj().resolve_neg().cpu().contiguous();
  const std::string_view bytes(
      static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;
  hash_ =
      hash_ * kMix + stable_hash(bytes) + static_cast<uint64_t>(input.numel());
}

int64_t InputWatch::take() {
  return static_cast<int64_t>(std::exchange(hash_, 0));
}

void InputWatch::compare(std::span<const int64_t> hashes) {
  if (is_over_) {
    return;
  }
  const bool are_equal =
      std::all_of(hashes.begin(), hashes.end(), [&](int64_t hash) {
        return hash != 0 && hash == hashes[0];
      });
  steps_.push_back(hashes[0]);
  is_over_ = !are_equal || steps_.size() == kNumSteps;
  is_shared_ = are_equal && is_over_ &&
               std::set(steps_.begin(), steps_.end()).size() == kNumSteps;
}

bool InputWatch::is_shared() {
  return std::exchange(is_shared_, false);
}

} // namespace accelerate
