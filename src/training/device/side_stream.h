// SPDX-License-Identifier: Apache-2.0
// Copies to an accelerator that overlap with computation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace accelerate {

/// A stream of an accelerator that is only used for copies. Used by one thread.
/// Never makes the CPU wait for the device.
class SideStream {
 public:
  explicit SideStream(c10::Device device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// The state of the copies at one moment.
  class Mark;

  /// The tensor on the device. Returns the same tensor if it is already there.
  /// The copy overlaps with computation if the tensor is pinned.
  at::Tensor copy(const at::Tensor& tensor);
  /// Marks the copies made so far.
  std::shared_ptr<Mark> mark();
  /// Makes later work on the calling thread's current stream wait for `mark`.
  /// That work may then use `tensors`, which `copy` has created.
  void hand_over(const Mark& mark, const std::vector<at::Tensor>& tensors);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The tensor in pinned memory. Returns the same tensor if it is pinned, on an
/// accelerator or undefined.
at::Tensor pinned(const at::Tensor& tensor);

} // namespace accelerate
