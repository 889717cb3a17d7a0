// SPDX-License-Identifier: Apache-2.0
// What a run is asked for.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/checkpoint.h"
#include "accelerate/data_loader_options.h"
#include "accelerate/ddp.h"
#include "accelerate/export.h"
#include "accelerate/grad_scaler.h"
#include "accelerate/memory_options.h"
#include "accelerate/own_engine.h"
#include "accelerate/precision.h"
#include "accelerate/process.h"
#include "accelerate/process_group.h"
#include "accelerate/scheduler_stepping.h"
#include "accelerate/sharding.h"

namespace accelerate {

/// Several micro-batches for one update: see `Accelerator::accumulate`.
struct ACCELERATE_API AccumulationOptions {
  /// Micro-batches per update. Where it is not given,
  /// ACCELERATE_GRADIENT_ACCUMULATION_STEPS says it, else it is 1.
  std::optional<int64_t> num_steps = {};
  /// The last batch of the loader that feeds the step ends the window.
  bool sync_with_dataloader = true;
  /// Average gradients after every micro-batch, not once per window: the same
  /// gradients (up to rounding) for more traffic.
  bool sync_each_batch = false;
};

/// Every field may be left out. For those that can also come from outside
/// (`cpu`, `mixed_precision`, `accumulation.num_steps`, `debug`) there is one
/// rule: what the program gives wins over the variable, that over the
/// launcher's file, that over the default (docs/guide_config.md).
struct ACCELERATE_API AcceleratorOptions {
  /// Train on the CPU although there are accelerators. Where it is not given,
  /// ACCELERATE_USE_CPU says it.
  std::optional<bool> cpu = {};
  /// Move prepared models and the batches of prepared loaders to `device()`.
  bool device_placement = true;
  /// What operators of prepared models compute in. Where it is not given,
  /// ACCELERATE_MIXED_PRECISION says it.
  std::optional<Precision> mixed_precision = {};
  /// With bf16: the weights of prepared models become bf16 themselves, and
  /// prepared optimizers train masters in fp32 in their place, to which
  /// gradients are added up. No operator casts weights then, and none is left
  /// in fp32: fp32 tensors among the arguments of a model are handed to it as
  /// bf16. Checkpoints and `save_model` hold the masters; parameters that are
  /// frozen have none and are saved as bf16.
  bool master_weights = false;
  /// Hand out what prepared models compute in reduced precision as fp32.
  bool outputs_to_fp32 = true;
  /// How the loss is scaled with fp16.
  GradScalerOptions scaler = {};
  AccumulationOptions accumulation = {};
  /// Check what is normally trusted: raw collectives compare operation, dtype
  /// and shape across ranks first (`ProcessGroup::check_collectives`), and
  /// every 100th backward compares weights (`check_ranks_equal`). Where it
  /// is not given, ACCELERATE_DEBUG_MODE says it.
  std::optional<bool> debug = {};
  /// Say at the end of the run (`end_training`, or the last handle's end), on
  /// the main process's stderr, what bounds its steps: `StepTimes::summary`.
  /// Where it is not given, ACCELERATE_STEP_SUMMARY says it; else nobody is
  /// told who did not ask.
  std::optional<bool> step_summary = {};
  DdpOptions ddp = {};
  /// What of a model each rank holds a part of only. Where its `stage` is
  /// given, `ddp` is not used.
  ShardingOptions shard = {};
  /// Where it is given, `ddp` is not used.
  OwnEngine engine = {};
  /// Whose memory parameters and gradients lie in; torch's by default.
  MemoryOptions memory = {};
  /// What all prepared loaders do, whatever their own options say.
  DataLoaderConfiguration data_loader = {};
  /// How often prepared schedulers move on.
  SchedulerStepping scheduler_stepping = SchedulerStepping::kPerOptimizerStep;
  /// Where `save_state` and `load_state` find checkpoints by themselves.
  CheckpointOptions checkpoints = {};
  /// How to connect where no `process_group` is given.
  ProcessGroupOptions connection = {};
  /// Where this process sits; read from the process's variables by default.
  std::optional<ProcessEnvironment> environment = {};
  /// A group that exists already (see `c10d.h` and `run_ranks`). Without an
  /// `environment`, all its ranks are taken to be on this machine.
  std::optional<ProcessGroup> process_group = {};
};

/// Whether several processes train together, and on what. `kMultiGpu`: on
/// accelerators of any kind.
enum class DistributedType { kNo, kMultiCpu, kMultiGpu };

} // namespace accelerate
