// SPDX-License-Identifier: Apache-2.0
// A prepared model without its type.
#pragma once

#include <memory>

#include "accelerate/precision.h"
#include "parallel/engine.h"
#include "state/parameter_set.h"
#include "state/parameter_snapshot.h"
#include "state/step_state.h"

namespace accelerate {

struct ModelContext {
  std::unique_ptr<ParallelEngine> engine;
  ParameterSet model;
  ParameterSnapshot as_prepared;
  std::shared_ptr<StepState> step_state;
  c10::DeviceType device = c10::kCPU;
  Precision precision = Precision::kNo;
  /// Outputs of reduced precision are handed out as fp32.
  bool outputs_to_fp32 = true;
};

} // namespace accelerate
