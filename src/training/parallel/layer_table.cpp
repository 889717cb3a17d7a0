// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/layer_table.h"

#include <algorithm>
#include <deque>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/parallel/engine.h"
#include "training/parallel/shard_units.h"
#include "training/state/deferred_tensors.h"

namespace accelerate {
namespace {

constexpr const char* kOwn = "a custom engine";

void check_master_weights(const EngineOptions& options) {
  if (!options.master_weights) {
    return;
  }
  if (options.precision != Precision::kBf16) {
    throw ConfigError(str_cat(
        "[Accelerator] master_weights needs bf16 mixed precision, but mixed "
        "precision is set to '",
        find_precision(options.precision).name,
        "'. Use bf16, or remove master_weights"));
  }
  if (!options.shard.ignored.empty()) {
    throw ConfigError(
        "[Accelerator] master_weights does not work with parameters that are "
        "left unsharded. Remove one of the two settings");
  }
}

// PowerSGD's state would be combined with gradients of another scale, or
// contain an infinity forever.
void check_compression(const EngineOptions& options) {
  const auto& ddp = options.ddp;
  if (options.precision == Precision::kFp16 &&
      ddp.compression == Compression::kPowerSgd &&
      (ddp.power_sgd.use_error_feedback || ddp.power_sgd.warm_start)) {
    throw ConfigError(
        "[Accelerator] PowerSGD with error feedback or warm start does not "
        "work with fp16. Use bf16, or turn both off");
  }
}

/// The rows, in the order of their callbacks. References to rows stay valid.
std::deque<LayerRow>& table() {
  static std::deque<LayerRow> rows = {
      {.name = "Tensor parallelism",
       .applies =
           [](const EngineOptions& options) {
             return options.mesh.size(MeshDimension::kTensor) > 1;
           },
       .make =
           [](const EngineArguments& arguments, const EngineOptions& options) {
             return make_tensor_layer(arguments, options.tensor_plan);
           },
       .serves = MeshDimension::kTensor,
       .excludes = {kOwn},
       .why_not_to_capture = [](const EngineOptions&) -> std::string {
         return "tensor-parallel ranks communicate in the forward pass, which "
                "cannot be recorded";
       }},
      {.name = "master_weights",
       .applies =
           [](const EngineOptions& options) {
             return options.master_weights && !options.is_sharded();
           },
       .make =
           [](const EngineArguments& arguments, const EngineOptions&) {
             return make_master_layer(arguments);
           },
       .excludes = {kOwn},
       .check = check_master_weights},
      {.name = "DDP",
       .applies =
           [](const EngineOptions& options) {
             return options.has_data_ranks() && !options.is_sharded() &&
                    !options.own.make;
           },
       .make =
           [](const EngineArguments& arguments, const EngineOptions& options) {
             return make_ddp_layer(arguments, options.ddp);
           },
       .serves = MeshDimension::kReplicate,
       .check = check_compression},
      {.name = "Sharding",
       .applies =
           [](const EngineOptions& options) {
             return options.shard.stage != ShardStage::kNone;
           },
       .make =
           [](const EngineArguments& arguments, const EngineOptions& options) {
             check_sharding(arguments.model, options.shard);
             return options.is_sharded()
                        ? make_shard_layer(arguments, options.shard)
                        : nullptr;
           },
       .serves = MeshDimension::kData,
       .excludes = {kOwn},
       .shards_parameters =
           [](const EngineOptions& options) {
             return options.is_sharded() &&
                    options.shard.stage == ShardStage::kParameters;
           },
       .why_not_to_capture = [](const EngineOptions& options) -> std::string {
         return options.is_sharded() ? "sharded models cannot be recorded" : "";
       }},
      {.name = kOwn,
       .applies =
           [](const EngineOptions& options) {
             return static_cast<bool>(options.own.make);
           },
       .make =
           [](const EngineArguments& arguments, const EngineOptions& options) {
             auto layer = options.own.make(arguments);
             if (!layer) {
               throw UsageError(
                   "[prepare] OwnEngine::make returned no layer. Return one "
                   "for each model");
             }
             return layer;
           },
       .serves = MeshDimension::kData,
       .why_not_to_capture = [](const EngineOptions&) -> std::string {
         return "custom engines cannot be recorded";
       },
       .needs_state = true}};
  return rows;
}

} // namespace

void register_layer(LayerRow row) {
  table().push_front(std::move(row));
}

MeshDimension served_dimensions() {
  MeshDimension served = {};
  for (const auto& row : table()) {
    served = served | row.serves;
  }
  return served;
}

EnginePlan::EnginePlan(EngineOptions options) : options_(std::move(options)) {
  for (const auto& row : table()) {
    if (row.applies(options_)) {
      rows_.push_back(&row);
    }
  }
  for (const auto* row : rows_) {
    for (const auto* other : rows_) {
      if (std::ranges::find(row->excludes, other->name) !=
          row->excludes.end()) {
        throw ConfigError(str_cat(
            "[Accelerator] ",
            row->name,
            " does not work with ",
            other->name,
            ". Remove one of them"));
      }
    }
  }
  for (const auto& row : table()) {
    if (row.check != nullptr) {
      row.check(options_);
    }
  }
}

std::shared_ptr<ParallelEngine> EnginePlan::make(
    EngineArguments arguments) const {
  fill_deferred(arguments.model.buffers, arguments.device);
  if (!shards_parameters()) {
    fill_deferred(arguments.model.parameters, arguments.device);
  }
  const auto engine = std::make_shared<ParallelEngine>(arguments);
  arguments.weights = weights();
  arguments.engine = engine.get();
  for (const auto* row : rows_) {
    if (auto layer = row->make(arguments, options_)) {
      engine->add(std::move(layer));
    }
  }
  engine->place_parameters();
  return engine;
}

std::optional<at::ScalarType> EnginePlan::weights() const {
  return options_.master_weights ? std::optional(at::kBFloat16) : std::nullopt;
}

bool EnginePlan::shards_parameters() const {
  return std::ranges::any_of(rows_, [this](const auto* row) {
    return row->shards_parameters != nullptr &&
           row->shards_parameters(options_);
  });
}

bool EnginePlan::needs_state() const {
  return std::ranges::any_of(
      rows_, [](const auto* row) { return row->needs_state; });
}

std::string EnginePlan::why_not_to_capture() const {
  for (const auto* row : rows_) {
    if (row->why_not_to_capture != nullptr) {
      if (auto why = row->why_not_to_capture(options_); !why.empty()) {
        return why;
      }
    }
  }
  return {};
}

} // namespace accelerate
