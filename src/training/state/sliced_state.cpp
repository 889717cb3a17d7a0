// SPDX-License-Identifier: Apache-2.0
#include "training/state/sliced_state.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/layout/piece_assembly.h"

namespace accelerate {

at::Tensor elements_at(const at::Tensor& whole, const TensorPieces& pieces) {
  std::vector<at::Tensor> selected;
  for (const auto& [box, begin, count] : pieces) {
    auto inside = whole;
    for (int64_t i = 0; i < whole.dim(); ++i) {
      const auto dim = static_cast<size_t>(i);
      inside = inside.narrow(i, box.begin[dim], box.size[dim]);
    }
    selected.push_back(inside.flatten().narrow(0, begin, count));
  }
  if (selected.empty()) {
    return whole.flatten().narrow(0, 0, 0);
  }
  return selected.size() == 1 ? selected.front() : at::cat(selected);
}

at::Tensor join_slices(
    const std::vector<int64_t>& whole,
    const std::vector<std::pair<TensorPieces, at::Tensor>>& slices) {
  const auto num_all = c10::multiply_integers(whole);
  PieceAssembly assembly(whole, flat_range(whole, 0, num_all));
  at::Tensor joined;
  for (const auto& [pieces, values] : slices) {
    check_pieces(whole, pieces);
    if (!joined.defined()) {
      joined = at::empty({num_all}, values.options().device(at::kCPU));
    }
    const auto from = values.flatten();
    assembly.add(pieces, [&](int64_t to, int64_t begin, int64_t count) {
      joined.narrow(0, to, count).copy_(from.narrow(0, begin, count));
    });
  }
  if (!joined.defined() || assembly.num_missing() != 0) {
    throw UsageError(str_cat(
        "[state_dict] ",
        assembly.num_missing(),
        " of ",
        num_all,
        " elements of a sharded tensor are missing. Pass the slices of all "
        "ranks"));
  }
  return joined.view(whole);
}

std::vector<int64_t> whole_shape(const StateValue& value) {
  if (const auto* slice = std::get_if<TensorSlice>(&value)) {
    return slice->whole;
  }
  const auto* tensor = std::get_if<at::Tensor>(&value);
  return tensor == nullptr ? std::vector<int64_t>{-1} : tensor->sizes().vec();
}

} // namespace accelerate
