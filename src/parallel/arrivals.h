// SPDX-License-Identifier: Apache-2.0
// Which gradients a backward has brought.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace accelerate {

/// Counts the gradients that arrive at a model's parameters, by a hook on each
/// of their accumulators: autograd's threads count, the thread that trains
/// asks.
class Arrivals {
 public:
  /// `on_arrival` is called for each, with its place in `parameters`, by
  /// autograd's threads.
  Arrivals(
      const std::vector<at::Tensor>& parameters,
      std::function<void(size_t place)> on_arrival);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  int64_t num_arrived() const;
  /// The thread that trains begins a backward: the last of one gradient for
  /// each parameter is told to the clock of its steps. Returns `num_arrived()`.
  int64_t begin_backward();
  /// False where torch has made another accumulator for the parameter at that
  /// place, as it does when its memory is set: nothing arrives any more.
  bool is_hooked(size_t place, const at::Tensor& parameter) const;
  /// False where a compiled backward runs without hooks.
  bool is_known() const;

 private:
  struct Counts;
  struct HookedAccumulator;
  std::shared_ptr<Counts> counts_;
  /// Keeps the accumulators alive: torch would make new ones otherwise.
  std::vector<HookedAccumulator> hooked_;
};

} // namespace accelerate
