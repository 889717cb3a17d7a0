// SPDX-License-Identifier: Apache-2.0
// Tracks which gradients a backward has computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace accelerate {

/// Counts the gradients that arrive at a model's parameters, with a hook on
/// each accumulator. Autograd's threads count; the training thread reads the
/// count.
class Arrivals {
 public:
  /// Autograd's threads call `on_arrival` for each, with its index in
  /// `parameters`.
  Arrivals(
      const std::vector<at::Tensor>& parameters,
      std::function<void(size_t index)> on_arrival);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  int64_t num_arrived() const;
  /// Called by the training thread at the start of a backward. When each
  /// parameter has a gradient, the last one is reported to the clock of its
  /// steps. Returns `num_arrived()`.
  int64_t begin_backward();
  /// False if torch has created another accumulator for the parameter at this
  /// index, as it does when its data is set: nothing is counted any more.
  bool is_hooked(size_t index, const at::Tensor& parameter) const;
  /// False if a compiled backward runs without hooks.
  bool is_known() const;

 private:
  struct Counts;
  struct HookedAccumulator;
  std::shared_ptr<Counts> counts_;
  /// Keeps the accumulators alive, otherwise torch would create new ones.
  std::vector<HookedAccumulator> hooked_;
};

} // namespace accelerate
