// SPDX-License-Identifier: Apache-2.0
// The parameters that a plan of tensor parallelism divides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/distributed/tensor_plan.h"
#include "core/base/internal.h"
#include "core/layout/tensor_layout.h"

namespace accelerate {

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
  /// Whether a `torch::nn::Linear` or `torch::nn::Embedding` has it. Tied
  /// weights belong to both.
  bool is_linear = false;
  bool is_embedding = false;
};

/// How one parameter is divided.
struct ParameterSplit {
  DimShard shard = {};
  /// Whether the inputs of a linear module are divided, not its outputs.
  bool divides_inputs = false;
  /// Whether every rank receives all outputs (`kGatheredColumns`).
  bool is_gathered = false;
  /// `kVocabulary`.
  bool is_vocabulary = false;
};

/// Whether `path` fits the pattern, in which "*" stands for one part.
ACCELERATE_INTERNAL bool fits_pattern(
    const std::string& pattern,
    const std::string& path);

/// The splits of these parameters, in their order. Empty for a parameter that
/// every rank has. Throws `ConfigError` if the plan is empty, an entry fits no
/// parameter, or a module cannot be divided among `num_ranks`. The message
/// names the module and the reason.
ACCELERATE_INTERNAL std::vector<std::optional<ParameterSplit>> tensor_splits(
    const TensorPlan& plan,
    const std::vector<NamedShape>& parameters,
    int num_ranks);

} // namespace accelerate
