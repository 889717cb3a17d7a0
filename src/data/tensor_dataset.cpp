// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "accelerate/data_loader.h"
#include "accelerate/error.h"
#include "base/str.h"
#include "device/device.h"

namespace accelerate {

TensorDataset::TensorDataset(std::vector<at::Tensor> columns)
    : columns_(std::move(columns)) {
  if (columns_.empty()) {
    throw UsageError("[TensorDataset] got no column, expected at least one");
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].dim() == 0 || columns_[i].size(0) != columns_[0].size(0)) {
      throw UsageError(str_cat(
          "[TensorDataset] column ",
          i,
          " has shape ",
          columns_[i].sizes(),
          ", expected ",
          columns_[0].sizes()[0],
          " rows as column 0; cut the longer one"));
    }
  }
}

size_t TensorDataset::size() const {
  return static_cast<size_t>(columns_[0].size(0));
}

std::vector<at::Tensor> TensorDataset::get_batch(
    std::span<const int64_t> indices) const {
  const auto rows = at::tensor(
      at::ArrayRef<int64_t>(indices.data(), indices.size()), at::kLong);
  std::vector<at::Tensor> batch;
  for (const auto& column : columns_) {
    batch.push_back(column.index_select(0, rows));
  }
  return batch;
}

namespace detail {

at::Tensor to_loader_device(
    const at::Tensor& tensor,
    const std::optional<c10::Device>& device) {
  return device ? to_device(tensor, *device) : tensor;
}

} // namespace detail
} // namespace accelerate
