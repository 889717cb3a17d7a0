// SPDX-License-Identifier: Apache-2.0
// Tensors without memory that know how they were made.
//
// A deferred tensor is one of the meta device that carries a dispatch key, and
// its storage names a tape. Operators that make it or write to it pass the key
// and are put on the tape; when its values are wanted, those of them that it
// depends on run again, in memory. So modules need not know of it, and weights
// that are copied from a mapped file are read where and when they are needed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// While it lives, tensors that this thread makes are deferred, unless they are
/// given a device. Scopes may be nested.
class ACCELERATE_API DeferredScope {
 public:
  DeferredScope();
  ~DeferredScope();
  DeferredScope(const DeferredScope&) = delete;
  DeferredScope& operator=(const DeferredScope&) = delete;

  /// Whether this thread is in one.
  static bool is_open();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

ACCELERATE_API bool is_deferred(const at::Tensor& tensor);

/// The values, in new memory on the host. The same at every call, also where
/// they are random: each draw has a seed that it got when it was recorded.
/// Throws `UsageError` where a tensor has changed since that values were to be
/// computed from.
ACCELERATE_API at::Tensor deferred_values(const at::Tensor& tensor);

/// Whether the values are, number by number, those of one tensor in memory that
/// is not torch's own, as a mapped file's is: a part of them then costs no more
/// than itself, and is the same whoever reads it.
ACCELERATE_API bool is_read_in_parts(const at::Tensor& tensor);
/// Fills `part`, which is flat, with the numbers from `begin` on of a tensor
/// that `is_read_in_parts`.
ACCELERATE_API void read_deferred_part(
    const at::Tensor& tensor,
    int64_t begin,
    const at::Tensor& part);

/// Makes `tensor`, with its identity and whether it is trained, one with the
/// memory, dtype and device of `other`.
ACCELERATE_API void replace_memory(
    const at::Tensor& tensor,
    const at::Tensor& other);

/// Gives those among `tensors` that are deferred memory on `device` and their
/// values. They stay the same objects; views of one memory stay that.
ACCELERATE_API void fill_deferred(
    const std::vector<at::Tensor>& tensors,
    c10::Device device);

} // namespace accelerate
