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
#include "accelerate/training/precision.h"
#include "core/base/internal.h"
#include "training/parallel/layers.h"

namespace accelerate {

/// What a run requests of its engines.
struct EngineOptions {
  DdpOptions ddp = {};
  /// With data-parallel ranks. Options that are wrong there are rejected on a
  /// single process, too.
  ShardingOptions shard = {};
  OwnEngine own = {};
  bool master_weights = false;
  Precision precision = Precision::kNo;
  Mesh mesh = {};

  /// True for a connected group of one rank, too: its steps make the same calls
  /// as those of several.
  bool has_data_ranks() const {
    return !mesh.group(MeshDimension::kData).is_solo();
  }
  bool is_sharded() const {
    return shard.stage != ShardStage::kNone && has_data_ranks();
  }
};

/// One row per layer.
struct LayerRow {
  /// In messages.
  std::string name;
  bool (*applies)(const EngineOptions& options) = nullptr;
  /// Creates the layer of one model; null if this model does not need it.
  /// Collective if the layer communicates. Throws `MismatchError` naming the
  /// odd rank if models differ.
  std::unique_ptr<Layer> (*make)(
      const EngineArguments& arguments,
      const EngineOptions& options) = nullptr;
  /// The dimensions of the mesh along which it divides the work. A run whose
  /// mesh has another one is an error.
  MeshDimension serves = {};
  /// Names of rows that it does not combine with.
  std::vector<std::string> excludes = {};
  /// Throws `ConfigError` on options that do not fit. Called whether or not the
  /// layer applies.
  void (*check)(const EngineOptions& options) = nullptr;
  /// Whether it puts parameters on the device itself, shard by shard.
  bool (*places_shards)(const EngineOptions& options) = nullptr;
  /// Why no step can be recorded, whatever the model; empty if some can.
  std::string (*why_not_to_capture)(const EngineOptions& options) = nullptr;
  /// Whether a checkpoint without its state cannot be loaded.
  bool needs_state = false;
};

/// Adds a row before the built-in ones. Call it when a program is loaded.
ACCELERATE_INTERNAL void register_layer(LayerRow row);

/// The dimensions that some layer serves.
MeshDimension served_dimensions();

/// The layers of the engines of a run. By default there are none.
class ACCELERATE_INTERNAL EnginePlan {
 public:
  EnginePlan() = default;
  /// Throws `ConfigError` if layers do not combine, or options do not fit.
  explicit EnginePlan(EngineOptions options);

  /// Creates the engine of one model; see `LayerRow::make`.
  std::shared_ptr<ParallelEngine> make(EngineArguments arguments) const;
  /// The dtype of trained models' weights, if they have master weights.
  std::optional<at::ScalarType> weights() const;
  bool places_shards() const;
  bool needs_state() const;
  std::string why_not_to_capture() const;

 private:
  EngineOptions options_;
  std::vector<const LayerRow*> rows_;
};

/// Converts the floating-point parameters to `arguments.weights` in place,
/// keeps a master weight for each trained one, and lets optimizers train these.
/// Checkpoints contain the master weights. Throws `UsageError` on sparse
/// gradients.
std::unique_ptr<Layer> make_master_layer(const EngineArguments& arguments);

/// Broadcasts rank 0's parameters and buffers, then averages gradients.
std::unique_ptr<Layer> make_ddp_layer(
    const EngineArguments& arguments,
    const DdpOptions& options);

/// Shards parameters, gradients or optimizer state, starting with rank 0's
/// values. Shards are master weights themselves.
std::unique_ptr<Layer> make_shard_layer(
    const EngineArguments& arguments,
    const ShardingOptions& options);

} // namespace accelerate
