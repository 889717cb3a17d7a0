// SPDX-License-Identifier: Apache-2.0
// Tracks which gradients a backward pass has computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace accelerate {

/// Counts the gradients that arrive at a model's parameters. Each gradient
/// accumulator has a hook. Autograd's threads count, and the training thread
/// reads the count.
class Arrivals {
 public:
  /// Autograd's threads call `on_arrival` for each gradient, with the index of
  /// its parameter in `parameters`.
  Arrivals(
      const std::vector<at::Tensor>& parameters,
      std::function<void(size_t index)> on_arrival);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  int64_t num_arrived() const;
  /// The training thread calls this at the start of a backward pass. When every
  /// parameter has a gradient, the arrival of the last one is reported to the
  /// clock of the rank's steps. Returns `num_arrived()`.
  int64_t begin_backward();
  /// False if torch has created another accumulator for the parameter at this
  /// index, which happens when its data is set. Its gradients are then not
  /// counted.
  bool is_hooked(size_t index, const at::Tensor& parameter) const;
  /// Whether the count is valid. False if a compiled backward pass runs without
  /// hooks.
  bool is_known() const;

 private:
  struct Counts;
  struct HookedAccumulator;
  std::shared_ptr<Counts> counts_;
  /// Keeps the accumulators alive, because torch would otherwise create new
  /// ones.
  std::vector<HookedAccumulator> hooked_;
};

} // namespace accelerate
