// SPDX-License-Identifier: Apache-2.0
// Trees taken apart, as the compiled part of `collectives.h` takes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/process_group.h"
#include "accelerate/tree.h"

namespace accelerate::detail {

/// A tree taken apart: its tensors and the text of its structure.
struct Leaves {
  std::vector<at::Tensor> tensors;
  std::string structure;
};
template <class T>
Leaves take_apart(const T& value) {
  return {tree::flatten(value), tree::structure(value)};
}

ACCELERATE_API std::vector<at::Tensor> all_gather(
    const ProcessGroup& group,
    const Leaves& leaves);
ACCELERATE_API std::optional<std::vector<at::Tensor>>
gather(const ProcessGroup& group, const Leaves& leaves, int root);
ACCELERATE_API std::vector<at::Tensor>
reduce(const ProcessGroup& group, const Leaves& leaves, ReduceOp op);
ACCELERATE_API void
broadcast(const ProcessGroup& group, const Leaves& leaves, int root);
ACCELERATE_API std::vector<at::Tensor>
scatter(const ProcessGroup& group, const Leaves& leaves, int root);
ACCELERATE_API std::vector<at::Tensor> pad_across_processes(
    const ProcessGroup& group,
    const Leaves& leaves,
    int64_t dim,
    double pad_index,
    bool pad_first);

} // namespace accelerate::detail
