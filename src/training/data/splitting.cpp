// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/splitting.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/data/even_split.h"

namespace accelerate {
namespace detail {

std::vector<int64_t>
split_indices(int64_t size, ShardOptions shard, bool apply_padding) {
  return even_split(size, shard, apply_padding);
}

int64_t length_of(const at::Tensor& values) {
  if (values.dim() == 0) {
    throw UsageError(
        "[split_between_processes] A scalar cannot be split. Pass a tensor "
        "with at least one dimension");
  }
  return values.size(0);
}

void check_same_length(
    const std::vector<std::pair<std::string, int64_t>>& lengths) {
  for (const auto& [name, length] : lengths) {
    if (length != lengths[0].second) {
      throw UsageError(str_cat(
          "[split_between_processes] '",
          name,
          "' has length ",
          length,
          ", but '",
          lengths[0].first,
          "' has ",
          lengths[0].second,
          ". All values must have the same length"));
    }
  }
}

} // namespace detail

at::Tensor
split(const at::Tensor& inputs, ShardOptions shard, bool apply_padding) {
  const auto own =
      detail::split_indices(detail::length_of(inputs), shard, apply_padding);
  return inputs.index_select(0, at::tensor(own, at::kLong).to(inputs.device()));
}

} // namespace accelerate
