// SPDX-License-Identifier: Apache-2.0
// Options of sharded training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/detail/shard_unit_size.h"
#include "accelerate/export.h"
#include "accelerate/training/precision.h"

namespace accelerate {

/// What is sharded across ranks. The rest is replicated.
enum class ShardStage {
  kNone,
  /// Shards optimizer state.
  kOptimizer,
  /// Also shards gradients.
  kGradients,
  /// Also shards parameters. Each parameter is gathered when an operator reads
  /// it.
  kParameters,
};

/// Options of sharded training (ZeRO, FSDP). To enable it, create
/// `Accelerator({.shard = {.stage = ShardStage::kParameters}})`. The program
/// needs no other changes. See docs/guide_sharding.md.
struct ACCELERATE_API ShardingOptions {
  ShardStage stage = ShardStage::kNone;
  /// The shard units, which are the sets of parameters that are communicated
  /// together. Each unit contains the parameters whose names start with one of
  /// these strings ("encoder.layers.0"). If several strings match, the longest
  /// one counts. By default, each block of the outermost lists is a unit
  /// ("layers.0", "layers.1"). Parameters without a match form one more unit. A
  /// tied parameter is matched by its first name.
  std::vector<std::string> units = {};
  /// Units with fewer elements than this are merged into the unit of parameters
  /// without a match.
  int64_t min_unit_numbers = detail::kMinUnitElements; // 65,536
  /// With `kParameters`, the number of units that are gathered ahead of the
  /// current one. It must be at least 1.
  int64_t prefetch = 1;
  /// The dtype in which gradients are communicated. By default, this is the
  /// dtype in which parameters are trained. bf16 halves the traffic but rounds
  /// each rank's gradients and their sum. Parameters are sent in the dtype in
  /// which the model reads them, which is bf16 with
  /// `AcceleratorOptions::master_weights`.
  Precision reduce_dtype = Precision::kNo;
  /// Parameters whose names start with one of these strings are replicated, and
  /// their gradients are averaged as in DDP. Not supported with
  /// `master_weights`.
  std::vector<std::string> ignored = {};
  /// Keep shards in pinned host memory and let optimizers train them there, so
  /// that an accelerator holds only the units in use. Has no effect on the CPU.
  bool cpu_offload = false;
};

} // namespace accelerate
