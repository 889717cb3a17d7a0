// SPDX-License-Identifier: Apache-2.0
// Parameters of a sharded model that every rank holds whole.
#pragma once

#include <cstdint>
#include <memory>

#include "accelerate/process_group.h"
#include "parallel/arrivals.h"
#include "state/parameter_set.h"

namespace accelerate {

/// Averages their gradients when a backward is over. They begin with rank 0's
/// values.
class WholeGradients {
 public:
  WholeGradients(const ProcessGroup& group, ParameterSet parameters);

  /// Parameters were frozen or unfrozen.
  void follow_frozen();
  void before_backward();
  /// A collective where it `syncs`.
  void after_backward(bool syncs);
  /// Whether the backward that ended last has brought some.
  bool has_arrived() const;

 private:
  ProcessGroup group_;
  ParameterSet parameters_;
  std::unique_ptr<Arrivals> arrivals_;
  int64_t num_before_ = 0;
};

} // namespace accelerate
