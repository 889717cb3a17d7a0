// SPDX-License-Identifier: Apache-2.0
// The table of layers: which ones an engine has, and which ones combine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/distributed/ddp.h"
#include "accelerate/distributed/mesh.h"
#include "accelerate/distributed/own_engine.h"
#include "accelerate/distributed/sharding.h"
#include "accelerate/distributed/tensor_plan.h"
#include "accelerate/training/precision.h"
#include "core/base/internal.h"
#include "training/parallel/layers.h"

namespace accelerate {

/// What a run requests of its engines.
struct EngineOptions {
  DdpOptions ddp = {};
  /// Applies with data-parallel ranks. A single process rejects invalid
  /// options, too.
  ShardingOptions shard = {};
  OwnEngine own = {};
  bool master_weights = false;
  /// Replaces the plans that models ship with.
  TensorPlan tensor_plan = {};
  Precision precision = Precision::kNo;
  Mesh mesh = {};

  /// Also true for a connected group of one rank: its steps make the same calls
  /// as those of several ranks.
  bool has_data_ranks() const {
    return !mesh.group(MeshDimension::kData).is_solo();
  }
  bool is_sharded() const {
    return shard.stage != ShardStage::kNone && has_data_ranks();
  }
};

/// One row per layer.
struct LayerRow {
  /// The name in messages.
  std::string name;
  bool (*applies)(const EngineOptions& options) = nullptr;
  /// Creates the layer of one model. Null if this model does not need it.
  /// Collective if the layer communicates. Throws `MismatchError` if models
  /// differ between ranks, and names the rank that differs.
  std::unique_ptr<Layer> (*make)(
      const EngineArguments& arguments,
      const EngineOptions& options) = nullptr;
  /// The dimensions of the mesh along which the layer divides the work. A mesh
  /// with a dimension that no layer serves is an error.
  MeshDimension serves = {};
  /// The names of rows that this layer cannot be combined with.
  std::vector<std::string> excludes = {};
  /// Throws `ConfigError` on invalid options. Called even if the layer does not
  /// apply.
  void (*check)(const EngineOptions& options) = nullptr;
  /// Whether the layer moves parameters to the device itself, shard by shard.
  bool (*shards_parameters)(const EngineOptions& options) = nullptr;
  /// Why no step can be recorded, regardless of the model. Empty if some steps
  /// can.
  std::string (*why_not_to_capture)(const EngineOptions& options) = nullptr;
  /// Whether a checkpoint without this layer's state cannot be loaded.
  bool needs_state = false;
};

/// Adds a row before the built-in ones. Call this while the program is loaded.
ACCELERATE_INTERNAL void register_layer(LayerRow row);

/// The dimensions that at least one layer serves.
MeshDimension served_dimensions();

/// The layers of the engines of a run. By default there are none.
class ACCELERATE_INTERNAL EnginePlan {
 public:
  EnginePlan() = default;
  /// Throws `ConfigError` if layers cannot be combined, or options are invalid.
  explicit EnginePlan(EngineOptions options);

  /// Creates the engine of one model. See `LayerRow::make`.
  std::shared_ptr<ParallelEngine> make(EngineArguments arguments) const;
  /// The dtype of trained models' weights, if they have master weights.
  std::optional<at::ScalarType> weights() const;
  bool shards_parameters() const;
  bool needs_state() const;
  std::string why_not_to_capture() const;

 private:
  EngineOptions options_;
  std::vector<const LayerRow*> rows_;
};

/// Divides parameters by the plan, or by that of the model if `plan` is empty,
/// starting with rank 0's values.
std::unique_ptr<Layer> make_tensor_layer(
    const EngineArguments& arguments,
    const TensorPlan& plan);

/// Converts the floating-point parameters to `arguments.weights` in place.
/// Optimizers train an fp32 master weight for each trained parameter, and
/// checkpoints contain the master weights. Throws `UsageError` on sparse
/// gradients.
std::unique_ptr<Layer> make_master_layer(const EngineArguments& arguments);

/// Broadcasts rank 0's parameters and buffers, then averages gradients.
std::unique_ptr<Layer> make_ddp_layer(
    const EngineArguments& arguments,
    const DdpOptions& options);

/// Shards parameters, gradients or optimizer state, starting with rank 0's
/// values. Shards are their own master weights.
std::unique_ptr<Layer> make_shard_layer(
    const EngineArguments& arguments,
    const ShardingOptions& options);

} // namespace accelerate
