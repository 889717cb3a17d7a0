// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies to the host during training.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// Copies tensors to its own host memory, which is kept, so that the next round
/// of the same tensors allocates nothing. Used by one thread at a time.
class ACCELERATE_INTERNAL HostCopies {
 public:
  HostCopies();
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Starts a round: the copies of the previous one may be overwritten.
  void restart();
  /// A contiguous copy. From an accelerator, it completes only with `wait`:
  /// later work on its current stream runs after the copy, and the host does
  /// not wait. Returns tensors that are not dense unchanged.
  at::Tensor copy(const at::Tensor& tensor);
  /// Waits for the copies of this round.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
