// SPDX-License-Identifier: Apache-2.0
// Splits a value that all ranks have into one part per rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/data/samplers.h"
#include "accelerate/export.h"

namespace accelerate {

namespace detail {

/// The indices of one rank's part.
ACCELERATE_API std::vector<int64_t>
split_indices(int64_t size, ShardOptions shard, bool apply_padding);

template <class T>
int64_t length_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size());
}
ACCELERATE_API int64_t length_of(const at::Tensor& values);

/// Throws a `UsageError` that names two entries with different lengths.
ACCELERATE_API void check_same_length(
    const std::vector<std::pair<std::string, int64_t>>& lengths);

} // namespace detail

/// Returns the contiguous part of one rank. If the size is not divisible by the
/// number of ranks, the first ranks get one additional element each. With
/// `apply_padding`, the last element is repeated so that all parts have the
/// same size.
///
///     const auto part =
///         accelerate::split(prompts, {.rank = 1, .world_size = 2});
template <class T>
std::vector<T> split(
    const std::vector<T>& inputs,
    ShardOptions shard,
    bool apply_padding = false) {
  std::vector<T> own;
  for (const int64_t index :
       detail::split_indices(detail::length_of(inputs), shard, apply_padding)) {
    own.push_back(inputs[static_cast<size_t>(index)]);
  }
  return own;
}
/// Tensors are split along dim 0.
ACCELERATE_API at::Tensor
split(const at::Tensor& inputs, ShardOptions shard, bool apply_padding = false);
/// Splits each value. All values must have the same length.
template <class T>
std::map<std::string, T> split(
    const std::map<std::string, T>& inputs,
    ShardOptions shard,
    bool apply_padding = false) {
  std::map<std::string, T> split_values;
  std::vector<std::pair<std::string, int64_t>> lengths;
  for (const auto& [name, value] : inputs) {
    lengths.emplace_back(name, detail::length_of(value));
    split_values.emplace(name, split(value, shard, apply_padding));
  }
  detail::check_same_length(lengths);
  return split_values;
}

} // namespace accelerate
