// SPDX-License-Identifier: Apache-2.0
// Where samples come from.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Something with a size and samples by index. Samples are trees (`tree.h`).
template <class D>
concept Dataset = requires(D& data, int64_t index) {
  { data.size() } -> std::convertible_to<size_t>;
  data.get(index);
};

/// A data set that makes whole batches faster than sample by sample.
template <class D>
concept BatchDataset = requires(D& data, std::span<const int64_t> indices) {
  { data.size() } -> std::convertible_to<size_t>;
  data.get_batch(indices);
};

/// Columns of equal length in memory; a sample is one row of each, a batch one
/// gather per column.
class ACCELERATE_API TensorDataset {
 public:
  /// Throws `UsageError` where there is no column or lengths differ.
  explicit TensorDataset(std::vector<at::Tensor> columns);

  size_t size() const;
  std::vector<at::Tensor> get_batch(std::span<const int64_t> indices) const;

 private:
  std::vector<at::Tensor> columns_;
};

} // namespace accelerate
