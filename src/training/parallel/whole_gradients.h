// SPDX-License-Identifier: Apache-2.0
// Parameters of a sharded model that every rank holds whole.
#pragma once

#include <cstdint>
#include <memory>

#include "accelerate/distributed/process_group.h"
#include "training/parallel/arrivals.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// Averages the gradients of these parameters after a backward pass. The
/// parameters start with rank 0's values.
class WholeGradients {
 public:
  WholeGradients(const ProcessGroup& group, ParameterSet parameters);

  /// Updates after parameters were frozen or unfrozen.
  void follow_frozen();
  void before_backward();
  /// Collective if `syncs`.
  void after_backward(bool syncs);
  /// Whether the latest backward pass has computed any of these gradients.
  bool has_arrived() const;

 private:
  ProcessGroup group_;
  ParameterSet parameters_;
  std::unique_ptr<Arrivals> arrivals_;
  int64_t num_before_ = 0;
};

} // namespace accelerate
