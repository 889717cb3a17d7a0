// SPDX-License-Identifier: Apache-2.0
// The one place that decides which kind of run this is.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "accelerate/accelerator_options.h"
#include "accelerate/mesh.h"
#include "parallel/strategies.h"

namespace accelerate {

/// What a run is made of.
struct Assembly {
  ProcessTopology topology;
  ProcessGroup group;
  /// The ranks of `group` by what they do; loaders and engines read it.
  Mesh mesh;
  c10::Device device{c10::kCPU};
  Precision precision = Precision::kNo;
  /// What the weights of models that train become; see `master_weights`.
  std::optional<at::ScalarType> weights = {};
  /// How models train together.
  Strategy strategy;
  int64_t gradient_accumulation_steps = 1;
  bool debug = false;
  bool step_summary = false;
};

/// What kind of run a group on such devices is.
ACCELERATE_API DistributedType
distributed_type_of(const ProcessGroup& group, c10::Device device);

/// Hugging Face's name of it: "NO", "MULTI_CPU", or what the row of the
/// device's kind says.
ACCELERATE_API std::string name_of(DistributedType type, c10::Device device);

/// From options and the process's variables to group and device.
Assembly assemble(const AcceleratorOptions& options, const EnvLookup& env);

} // namespace accelerate
