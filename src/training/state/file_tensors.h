// SPDX-License-Identifier: Apache-2.0
// Torch tensors in safetensors files.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/safetensors.h"
#include "core/base/internal.h"

namespace accelerate {

/// The dtype of a file's tensor. Empty if torch does not support it.
std::optional<c10::ScalarType> torch_dtype(safetensors::Dtype dtype);

/// Whether a file can store the tensor: it must be dense, in memory, and of a
/// dtype that the format supports.
ACCELERATE_INTERNAL bool fits_into_files(const at::Tensor& tensor);

/// Contiguous tensors on the host, to be written to a file. Copies only tensors
/// that are not contiguous or not on the host.
class ACCELERATE_INTERNAL FileTensors {
 public:
  /// Messages begin with `where` ("[save]") and end with `instead`, which says
  /// what to do.
  FileTensors(std::string where, std::string instead);
  /// Throws `UsageError` if a file cannot store the tensor.
  void add(const std::string& name, const at::Tensor& tensor);
  /// Views of the added tensors, valid as long as this object.
  std::span<const safetensors::TensorView> views() const { return views_; }

 private:
  std::string where_;
  std::string instead_;
  std::vector<at::Tensor> held_;
  std::vector<safetensors::TensorView> views_;
};

/// The tensor as a view of the file's memory if the layout permits this, else
/// as a copy. Do not write to it. Throws `DataError` for dtypes that torch does
/// not support.
ACCELERATE_INTERNAL at::Tensor tensor_in(
    const safetensors::File& file,
    const safetensors::TensorView& view);

} // namespace accelerate
