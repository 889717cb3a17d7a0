// SPDX-License-Identifier: Apache-2.0
// The one place that decides which kind of run this is.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "accelerate/accelerator_options.h"
#include "parallel/strategies.h"

namespace accelerate {

/// What a run is made of.
struct Assembly {
  ProcessTopology topology;
  ProcessGroup group;
  c10::Device device{c10::kCPU};
  Precision precision = Precision::kNo;
  /// How models train together.
  Strategy strategy;
  int64_t gradient_accumulation_steps = 1;
};

/// Whether the options or ACCELERATE_USE_CPU keep the run off accelerators.
/// Throws `ConfigError` where the variable is no truth value.
ACCELERATE_API bool wants_cpu(bool cpu, const EnvLookup& env);

/// What operators are asked to compute in: `given`, or what
/// ACCELERATE_MIXED_PRECISION says, or fp32. Throws `ConfigError` where the
/// variable names no precision.
ACCELERATE_API Precision
requested_precision(std::optional<Precision> given, const EnvLookup& env);

/// What kind of run a group on such devices is.
ACCELERATE_API DistributedType
distributed_type_of(const ProcessGroup& group, c10::Device device);

/// Hugging Face's name of it: "NO", "MULTI_CPU", or what the row of the
/// device's kind says.
ACCELERATE_API std::string name_of(DistributedType type, c10::Device device);

/// From options and the process's variables to group and device.
Assembly assemble(const AcceleratorOptions& options, const EnvLookup& env);

} // namespace accelerate
