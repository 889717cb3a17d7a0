// SPDX-License-Identifier: Apache-2.0
// Options of sharded training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/precision.h"

namespace accelerate {

/// What is cut into one part per rank; the rest is whole on every rank.
enum class ShardStage {
  kNone,
  /// The state of optimizers.
  kOptimizer,
  /// And gradients.
  kGradients,
  /// And parameters: each is gathered when an operator reads it.
  kParameters,
};

/// Sharded training (ZeRO, FSDP): `Accelerator({.shard = {.stage =
/// ShardStage::kParameters}})`, and nothing else in the program changes. See
/// docs/guide_sharding.md.
struct ACCELERATE_API ShardingOptions {
  ShardStage stage = ShardStage::kNone;
  /// Parameters travel in units, each those whose names begin with one of these
  /// ("encoder.layers.0"); the longest that fits counts. Where none is given,
  /// each block of the outermost lists is one ("layers.0", "layers.1").
  /// Parameters that fit nowhere are one more unit; a tied one goes by the
  /// first of its names.
  std::vector<std::string> units = {};
  /// Units of fewer numbers than this join those that fit nowhere.
  int64_t min_unit_numbers = 65'536;
  /// With `kParameters`: how many units are gathered ahead of the one in use,
  /// at least 1.
  int64_t prefetch = 1;
  /// What gradients travel in: as they are trained, or bf16, which is half as
  /// much and rounds each rank's gradients and their sum. Parameters travel as
  /// the model reads them: as bf16 with `AcceleratorOptions::master_weights`.
  Precision reduce_dtype = Precision::kNo;
  /// Parameters whose names begin with one of these stay whole on every rank,
  /// and their gradients are averaged as DDP's. Not with `master_weights`.
  std::vector<std::string> ignored = {};
  /// Copies of the model (HSDP): each is cut over as many ranks as there are
  /// for one copy, neighbours in rank, and gathers stay among these. Gradients
  /// are averaged over all.
  int num_replicas = 1;
  /// Parts lie in pinned memory of the host, and optimizers train them there:
  /// an accelerator holds the units in use alone. Nothing on the CPU.
  bool cpu_offload = false;
};

} // namespace accelerate
