// SPDX-License-Identifier: Apache-2.0
// Memory that graphs overwrite while callers may still use its tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// Tensors at fixed addresses, which recorded work writes again and again.
/// Callers receive tensors on the same memory, without a copy. Before the next
/// write, `reclaim` moves the values that callers still use to other memory.
class ACCELERATE_INTERNAL ReusedMemory {
 public:
  /// Returns the index of the tensor, which must be contiguous or dense.
  size_t add(const at::Tensor& tensor);

  /// New tensors on the memory of these tensors.
  std::vector<at::Tensor> hand_out(const std::vector<size_t>& indices);

  /// Call this before the memory is overwritten. Tensors from `hand_out`, and
  /// views of them, that are still in use keep their values: they get memory of
  /// their own, which is allocated and filled on the current stream.
  void reclaim(const std::vector<size_t>& indices);

  /// Sets the gradients of these parameters to the results of `hand_out`.
  void hand_out_gradients(
      const std::vector<size_t>& indices,
      const std::vector<at::Tensor>& parameters);

  /// Whether this is a tensor from the latest `hand_out` and still covers the
  /// memory.
  bool owns(size_t index, const at::Tensor& tensor) const;

 private:
  struct Entry {
    at::Tensor memory;
    c10::weak_intrusive_ptr<c10::StorageImpl> handed_out;
  };
  static at::Tensor tensor_on(Entry& entry);

  std::vector<Entry> entries_;
};

} // namespace accelerate
