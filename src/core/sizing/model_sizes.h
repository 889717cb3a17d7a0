// SPDX-License-Identifier: Apache-2.0
// Memory estimates of models, from the headers of their files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/distributed/mesh_shape.h"
#include "core/base/internal.h"

namespace accelerate {

struct ModelSizes {
  /// Bytes of all tensors if every floating-point tensor is in float32. A
  /// shared tensor counts once.
  double total_bytes = 0;
  /// Bytes of the largest part that must be on one device: a block of the
  /// model, or a module without children outside of blocks.
  double largest_layer_bytes = 0;
  std::vector<std::string> largest_layers = {};
  /// Bytes of the largest default shard unit (sharding.h): a block of the
  /// outermost lists, or everything outside of blocks and in small ones.
  double largest_unit_bytes = 0;
  /// The model type in config.json. Empty without that file.
  std::string model_type = {};
  /// Whether the model type is known. Otherwise numbered modules are assumed to
  /// be the blocks, and buffers that are not in the files are not counted.
  bool is_known = false;
};

/// `path` is a safetensors file, an index or a folder. config.json is expected
/// in the same folder. No tensor is read. Throws the same errors as
/// `safetensors::Checkpoint`, and `ConfigError` for a malformed config.json.
ACCELERATE_INTERNAL ModelSizes measure_model(const std::filesystem::path& path);

/// The memory of a model whose weights have one dtype.
struct MemoryEstimate {
  std::string dtype = {};
  double largest_layer_bytes = 0;
  double total_bytes = 0;
  /// With Adam and a batch of one: weights, gradients and optimizer state.
  /// Empty for integers, which are not trained.
  std::optional<double> training_bytes = {};
};

/// `dtype`: "float32", "float16", "int8" or "int4".
ACCELERATE_INTERNAL MemoryEstimate
estimate_memory(const ModelSizes& sizes, const std::string& dtype);

/// The memory per process for training with AdamW in float32, without
/// activations (docs/guide_sharding.md).
struct ShardedEstimate {
  double total_bytes() const {
    return parameter_bytes + gradient_bytes + optimizer_bytes;
  }

  /// "DDP", "1", "2", "3", "3, master_weights".
  std::string stage = {};
  double parameter_bytes = 0;
  double gradient_bytes = 0;
  double optimizer_bytes = 0;
};

ACCELERATE_INTERNAL std::vector<ShardedEstimate> estimate_sharding(
    const ModelSizes& sizes,
    const MeshShape& mesh);

} // namespace accelerate
