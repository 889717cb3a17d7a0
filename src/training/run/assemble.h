// SPDX-License-Identifier: Apache-2.0
// Decides which kind of run this is.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "accelerate/accelerator_options.h"
#include "accelerate/distributed/mesh.h"
#include "core/base/internal.h"
#include "training/parallel/layer_table.h"

namespace accelerate {

/// The parts of a run.
struct Assembly {
  ProcessTopology topology;
  ProcessGroup group;
  /// The ranks of `group` by their role. Loaders and engines use it.
  Mesh mesh;
  c10::Device device{c10::kCPU};
  Precision precision = Precision::kNo;
  /// How each model is trained by several ranks.
  EnginePlan engines;
  int64_t gradient_accumulation_steps = 1;
  bool debug = false;
  bool step_summary = false;
};

/// The kind of run for a group on these devices.
ACCELERATE_INTERNAL DistributedType
distributed_type_of(const ProcessGroup& group, c10::Device device);

/// Hugging Face's name for the kind: "NO", "MULTI_CPU", or the name in the row
/// of the device's kind.
ACCELERATE_INTERNAL std::string name_of(
    DistributedType type,
    c10::Device device);

/// Determines group and device from options and environment variables.
Assembly assemble(const AcceleratorOptions& options, const EnvLookup& env);

} // namespace accelerate
