// SPDX-License-Identifier: Apache-2.0
// Which modules tensor parallelism divides among ranks, and how. Needs no
// torch.
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
  /// stay divided. A module of `kRows` must follow, possibly after elementwise
  /// operations or attention over this rank's heads.
  kColumns,
  /// Like `kColumns`, but every rank receives all output features.
  kGatheredColumns,
  /// A linear module whose inputs `kColumns` has divided: each rank multiplies
  /// its input features, and the outputs are summed over ranks. Every rank has
  /// the whole bias.
  kRows,
  /// An embedding: each rank has some rows of the table, and the outputs are
  /// summed over ranks. Also for a projection to the vocabulary, which may
  /// share the weight of the embedding.
  kVocabulary,
};

/// The split of some modules.
struct ACCELERATE_API TensorPlanEntry {
  /// The path of the modules; each "*" stands for one part of it:
  /// "layers.*.mlp.up".
  std::string modules = {};
  TensorSplit split = TensorSplit::kColumns;
  /// Each rank has whole units of the divided features, such as attention
  /// heads. 0 if features can be divided anywhere.
  std::int64_t num_units = 0;
  /// The number of equal projections that are fused into one weight, such as 3
  /// for query, key and value. Each rank has a part of each projection.
  std::int64_t num_fused = 1;
  /// The weight is inputs x outputs, as GPT-2's `Conv1D`. Torch's linear
  /// modules are outputs x inputs.
  bool is_transposed = false;
};

/// Modules that are in no entry are whole on every rank.
///
///     accelerate::TensorPlan plan = {
///         {"layers.*.up", accelerate::TensorSplit::kColumns},
///         {"layers.*.down", accelerate::TensorSplit::kRows}};
using TensorPlan = std::vector<TensorPlanEntry>;

/// A module that ships with a plan derives from this, too.
class ACCELERATE_API HasTensorPlan {
 public:
  virtual ~HasTensorPlan() = default;
  /// Paths are relative to this module.
  virtual TensorPlan tensor_plan() const = 0;
};

} // namespace accelerate
