// SPDX-License-Identifier: Apache-2.0
// What a run is asked for.
#pragma once

#include <cstdint>
#include <optional>

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

namespace accelerate {

/// Several micro-batches for one update: see `Accelerator::accumulate`.
struct ACCELERATE_API AccumulationOptions {
  /// Micro-batches per update. ACCELERATE_GRADIENT_ACCUMULATION_STEPS, where it
  /// is set, wins.
  int64_t num_steps = 1;
  /// The last batch of the loader that feeds the step ends the window.
  bool sync_with_dataloader = true;
  /// Average gradients after every micro-batch, not once per window: more
  /// traffic, less memory in engines that shard.
  bool sync_each_batch = false;
};

/// Every field may be left out: the environment that a launcher made says the
/// rest.
struct ACCELERATE_API AcceleratorOptions {
  /// Train on the CPU although there are accelerators. ACCELERATE_USE_CPU=true
  /// does the same from outside.
  bool cpu = false;
  /// Move prepared models and the batches of prepared loaders to `device()`.
  bool device_placement = true;
  /// What operators of prepared models compute in. Where it is not given,
  /// ACCELERATE_MIXED_PRECISION says it.
  std::optional<Precision> mixed_precision = {};
  /// Hand out what prepared models compute in reduced precision as fp32.
  bool outputs_to_fp32 = true;
  /// How the loss is scaled with fp16.
  GradScalerOptions scaler = {};
  AccumulationOptions accumulation = {};
  DdpOptions ddp = {};
  /// Where it is given, `ddp` is not used.
  OwnEngine engine = {};
  /// Whose memory parameters and gradients lie in; torch's by default.
  MemoryOptions memory = {};
  /// What all prepared loaders do, whatever their own options say.
  DataLoaderConfiguration data_loader = {};
  /// How often prepared schedulers move on.
  SchedulerStepping scheduler_stepping = SchedulerStepping::kPerOptimizerStep;
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
