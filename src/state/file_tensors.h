// SPDX-License-Identifier: Apache-2.0
// Torch's tensors as safetensors files hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/safetensors.h"

namespace accelerate {

/// Whether a file can hold it: dense numbers in memory, of a dtype that files
/// have a name for.
ACCELERATE_API bool fits_into_files(const at::Tensor& tensor);

/// Tensors on the host, in one piece each, that are to be in a file. Dense ones
/// on the host are not copied.
class ACCELERATE_API FileTensors {
 public:
  /// Messages begin with `where` ("[save]"), and end with what to do instead.
  FileTensors(std::string where, std::string instead);
  /// Throws `UsageError` where a file cannot hold it.
  void add(const std::string& name, const at::Tensor& tensor);
  /// Of what was added, as long as this lives.
  std::span<const safetensors::TensorView> views() const { return views_; }

 private:
  std::string where_;
  std::string instead_;
  std::vector<at::Tensor> held_;
  std::vector<safetensors::TensorView> views_;
};

/// In the memory of the file where it is laid out for it, else a copy; not to
/// be written to. Throws `DataError` on a dtype that torch does not have.
ACCELERATE_API at::Tensor tensor_in(
    const safetensors::File& file,
    const safetensors::TensorView& view);

} // namespace accelerate
