// SPDX-License-Identifier: Apache-2.0
// Tensors without memory that record how they were created.
//
// A deferred tensor is a meta tensor with an additional dispatch key, whose
// storage refers to a tape. The key intercepts operators that create the tensor
// or write to it, and records them on the tape. When the values of the tensor
// are needed, the calls that it depends on run again, in memory. Modules need
// no changes, and weights copied from a mapped file are read only when they are
// needed, and only by the ranks that need them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// During its lifetime, tensors that this thread creates are deferred unless a
/// device is given. Scopes may be nested.
class DeferredScope {
 public:
  DeferredScope();
  ~DeferredScope();
  DeferredScope(const DeferredScope&) = delete;
  DeferredScope& operator=(const DeferredScope&) = delete;

  /// Whether a scope exists in this thread.
  static bool is_open();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

bool is_deferred(const at::Tensor& tensor);

/// The values, in new memory on the host. Every call returns the same values,
/// even if they are random, because the seed of each draw was recorded. Throws
/// `UsageError` if a tensor that they are computed from has changed since.
at::Tensor deferred_values(const at::Tensor& tensor);

/// Whether the values are exactly those of one tensor in memory that torch does
/// not own, e.g. of a mapped file. A slice can then be read without the rest,
/// and every reader gets the same values.
ACCELERATE_INTERNAL bool is_read_in_slices(const at::Tensor& tensor);
/// Fills the flat tensor `slice` with the elements of `tensor` that start at
/// `begin`. Requires `is_read_in_slices(tensor)`.
void read_deferred_slice(
    const at::Tensor& tensor,
    int64_t begin,
    const at::Tensor& slice);

/// Gives `tensor` the memory, dtype and device of `other`. The tensor object
/// and its `requires_grad` stay the same.
void replace_memory(const at::Tensor& tensor, const at::Tensor& other);

/// Gives the deferred tensors among `tensors` memory on `device` and their
/// values. They remain the same objects, and views of one storage still share
/// it.
void fill_deferred(const std::vector<at::Tensor>& tensors, c10::Device device);

} // namespace accelerate
