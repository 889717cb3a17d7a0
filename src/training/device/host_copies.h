// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies to the host during training.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace accelerate {

/// Copies tensors to host memory that it owns and keeps, so that the next round
/// of the same tensors allocates nothing. Used by one thread at a time.
class HostCopies {
 public:
  HostCopies();
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Starts a round: the copies of the previous one may be overwritten.
  void restart();
  /// Returns a contiguous copy. A copy from an accelerator completes only with
  /// `wait`: later work on the current stream runs after the copy, and the host
  /// does not wait. A tensor that is not dense is returned unchanged.
  at::Tensor copy(const at::Tensor& tensor);
  /// Waits for the copies of this round.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
