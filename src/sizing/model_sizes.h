// SPDX-License-Identifier: Apache-2.0
// How much memory a model takes, from the headers of its files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

struct ModelSizes {
  /// Bytes with every floating-point tensor in float32. A tensor that several
  /// modules share counts once.
  double total_bytes = 0;
  /// The largest part that has to be on one device: a block of the model, or a
  /// module without children outside the blocks.
  double largest_layer_bytes = 0;
  std::vector<std::string> largest_layers = {};
  /// Of a sharded model without units of its own (sharding.h): a block of the
  /// outermost lists, or all that is in none or in a small one.
  double largest_unit_bytes = 0;
  /// From config.json; empty without one.
  std::string model_type = {};
  /// Whether the model type is known. Where it is not, numbered modules are
  /// taken for the blocks, and buffers that are not in the files are missing.
  bool is_known = false;
};

/// `path`: a safetensors file, an index, or a folder; config.json is looked for
/// beside it. Reads no tensor. Throws what `safetensors::Checkpoint` throws,
/// and `ConfigError` for a malformed config.json.
ACCELERATE_API ModelSizes measure_model(const std::filesystem::path& path);

/// What a model takes in one dtype.
struct MemoryEstimate {
  std::string dtype = {};
  double largest_layer_bytes = 0;
  double total_bytes = 0;
  /// With Adam and a batch of one: weights, gradients and optimizer state.
  /// Nothing for integers, which are not trained.
  std::optional<double> training_bytes = {};
};

/// `dtype`: "float32", "float16", "int8" or "int4".
ACCELERATE_API MemoryEstimate
estimate_memory(const ModelSizes& sizes, const std::string& dtype);

/// What one process of a run holds for training with AdamW in float32, without
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

ACCELERATE_API std::vector<ShardedEstimate> estimate_sharding(
    const ModelSizes& sizes,
    int num_processes);

} // namespace accelerate
