// SPDX-License-Identifier: Apache-2.0
// The one place that decides which kind of run this is.
#pragma once

#include <memory>

#include "accelerate/accelerator_options.h"
#include "accelerate/mesh.h"
#include "parallel/engine.h"

namespace accelerate {

/// What a run is made of.
struct Assembly {
  ProcessTopology topology;
  ProcessGroup group;
  /// The ranks of `group` by what they do; loaders and engines read it.
  Mesh mesh;
  c10::Device device{c10::kCPU};
  Precision precision = Precision::kNo;
  int64_t gradient_accumulation_steps = 1;
};

/// Whether the options or ACCELERATE_USE_CPU keep the run off GPUs. Throws
/// `ConfigError` where the variable is no truth value.
ACCELERATE_API bool wants_cpu(bool cpu, const EnvLookup& env);

/// From options and the process's variables to group and device.
Assembly assemble(const AcceleratorOptions& options, const EnvLookup& env);

/// The engine for one model of such a run.
std::unique_ptr<ParallelEngine> make_engine(
    const Assembly& assembly,
    const ParameterSet& model,
    const AcceleratorOptions& options);

} // namespace accelerate
