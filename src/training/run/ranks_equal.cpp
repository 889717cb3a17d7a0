// SPDX-License-Identifier: Apache-2.0
#include "training/run/ranks_equal.h"

#include <ATen/ATen.h>

#include <map>

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

void check_ranks_equal(
    const ParallelEngine& engine,
    const ParameterSet& model) {
  const auto& group = engine.mesh().group();
  if (group.world_size() == 1 || model.parameters.empty()) {
    return;
  }
  std::vector<int64_t> own;
  for (const auto& tensor : model.parameters) {
    own.push_back(hash_of(tensor));
  }
  const auto all = all_gather(group, own);
  for (size_t i = 0; i < own.size(); ++i) {
    const auto divided =
        engine.held_layout(model.parameters[i]).divided_along();
    // The first rank with each part.
    std::map<int, int> first_of;
    int first = 0;
    std::string odd;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const int part = engine.mesh().shape().coordinate(rank, divided);
      const int known = first_of.emplace(part, rank).first->second;
      const auto hash_on = [&](int other) {
        return all[static_cast<size_t>(other) * own.size() + i];
      };
      if (hash_on(rank) != hash_on(known) && (odd.empty() || known == first)) {
        first = known;
        odd += str_cat(odd.empty() ? "" : ", ", rank);
      }
    }
    if (!odd.empty()) {
      throw MismatchError(str_cat(
          "[check_ranks_equal] '",
          model.names[i],
          "' of rank ",
          odd,
          " differs from rank ",
          first,
          "'s. Load or change weights in the same way on "
          "all ranks, or before prepare(), which broadcasts rank 0's weights"));
    }
  }
}

} // namespace accelerate
