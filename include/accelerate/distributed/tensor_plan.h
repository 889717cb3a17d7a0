// SPDX-License-Identifier: Apache-2.0
// Which modules tensor parallelism divides among ranks, and how. This header
// does not need torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// How tensor-parallel ranks divide a module. `torch::nn::Linear`,
/// `torch::nn::Embedding` and the layers of our models can be divided.
enum class TensorSplit {
  /// A linear module: each rank computes some of the output features, which
  /// stay divided. A `kRows` module must follow, possibly after elementwise
  /// operations or attention over this rank's heads.
  kColumns,
  /// Like `kColumns`, but every rank receives all output features.
  kGatheredColumns,
  /// A linear module whose inputs `kColumns` has divided: each rank multiplies
  /// its input features, and the outputs are summed over ranks. Every rank has
  /// the whole bias.
  kRows,
  /// An embedding: each rank has some rows of the table, and the outputs are
  /// summed over ranks. Use this also for a projection to the vocabulary, which
  /// may share the weight of the embedding.
  kVocabulary,
};

/// The split of some modules.
struct ACCELERATE_API TensorPlanEntry {
  /// The path of the modules, such as "layers.*.mlp.up". Each "*" stands for
  /// one component of the path.
  std::string modules = {};
  TensorSplit split = TensorSplit::kColumns;
  /// The number of units, such as attention heads, that the divided features
  /// consist of. A unit is never split between ranks. 0 means that features can
  /// be divided anywhere.
  std::int64_t num_units = 0;
  /// The number of equal projections that are fused into one weight, such as 3
  /// for query, key and value. Each rank has a part of each projection.
  std::int64_t num_fused = 1;
  /// Whether the weight is stored as inputs x outputs, as in GPT-2's `Conv1D`.
  /// Torch's linear modules store it as outputs x inputs.
  bool is_transposed = false;
};

/// A list of splits. Modules that match no entry are whole on every rank.
///
///     accelerate::TensorPlan plan = {
///         {"layers.*.up", accelerate::TensorSplit::kColumns},
///         {"layers.*.down", accelerate::TensorSplit::kRows}};
using TensorPlan = std::vector<TensorPlanEntry>;

/// The interface of modules that ship with a plan.
class ACCELERATE_API HasTensorPlan {
 public:
  virtual ~HasTensorPlan() = default;
  /// Paths are relative to this module.
  virtual TensorPlan tensor_plan() const = 0;
};

} // namespace accelerate
