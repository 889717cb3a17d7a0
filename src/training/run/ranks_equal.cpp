// SPDX-License-Identifier: Apache-2.0
#include "training/run/ranks_equal.h"

#include <ATen/ATen.h>

#include "accelerate/distributed/collectives.h"
#include "accelerate/error.h"
#include "core/base/checksum.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

int64_t hash_of(const at::Tensor& tensor) {
  // Copy with an operator, because it throws if the weights are not on this
  // rank.
  const auto plain = tensor.detach()
                         .resolve_conj()
                         .resolve_neg()
                         .to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)
                         .contiguous();
  const auto text = checksum_of(std::span(
      static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()));
  return static_cast<int64_t>(std::stoull(text, nullptr, 16));
}

} // namespace

void check_ranks_equal(const ProcessGroup& group, const ParameterSet& model) {
  if (group.world_size() == 1 || model.parameters.empty()) {
    return;
  }
  std::vector<int64_t> own;
  for (const auto& tensor : model.parameters) {
    own.push_back(hash_of(tensor));
  }
  const auto all = all_gather(group, own);
  for (size_t i = 0; i < own.size(); ++i) {
    std::string odd;
    for (int rank = 1; rank < group.world_size(); ++rank) {
      if (all[static_cast<size_t>(rank) * own.size() + i] != all[i]) {
        odd += str_cat(odd.empty() ? "" : ", ", rank);
      }
    }
    if (!odd.empty()) {
      throw MismatchError(str_cat(
          "[check_ranks_equal] '",
          model.names[i],
          "' of rank ",
          odd,
          " differs from rank 0's. Load or change weights in the same way on "
          "all ranks, or before prepare(), which broadcasts rank 0's weights"));
    }
  }
}

} // namespace accelerate
