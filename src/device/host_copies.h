// SPDX-License-Identifier: Apache-2.0
// Copies on the host that training goes on beside.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Copies tensors to memory of its own on the host. The memory is kept, so that
/// the next round of the same tensors allocates nothing. Used by one thread at
/// a time.
class ACCELERATE_API HostCopies {
 public:
  HostCopies();
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Begins a round: the copies of the one before may be overwritten.
  void restart();
  /// A contiguous copy. From an accelerator it is under way until `wait`: its
  /// current stream goes on behind it, the host at once. What is not dense
  /// comes back itself.
  at::Tensor copy(const at::Tensor& tensor);
  /// Until the copies of this round are there.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
