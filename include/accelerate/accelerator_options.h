// SPDX-License-Identifier: Apache-2.0
// The options of an `Accelerator`.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/checkpoint.h"
#include "accelerate/data/data_loader_options.h"
#include "accelerate/distributed/ddp.h"
#include "accelerate/distributed/memory_options.h"
#include "accelerate/distributed/mesh_shape.h"
#include "accelerate/distributed/own_engine.h"
#include "accelerate/distributed/process_group.h"
#include "accelerate/distributed/sharding.h"
#include "accelerate/distributed/tensor_plan.h"
#include "accelerate/export.h"
#include "accelerate/optim/scheduler_stepping.h"
#include "accelerate/process.h"
#include "accelerate/training/grad_scaler.h"
#include "accelerate/training/precision.h"

namespace accelerate {

/// Gradient accumulation: see `Accelerator::accumulate`.
struct ACCELERATE_API AccumulationOptions {
  /// Micro-batches per update. Default: ACCELERATE_GRADIENT_ACCUMULATION_STEPS,
  /// or 1.
  std::optional<int64_t> num_steps = {};
  /// Also update on the last batch of the loader that feeds the step.
  bool sync_with_dataloader = true;
  /// Average gradients after every micro-batch instead of once per update. The
  /// gradients are the same up to rounding, but the traffic is higher.
  bool sync_each_batch = false;
};

/// All fields are optional. `cpu`, `mixed_precision`, `accumulation.num_steps`
/// and `debug` can also be set outside of the program. The program takes
/// precedence over the environment variable, the variable over the launcher's
/// configuration file, and the file over the default (docs/guide_config.md).
struct ACCELERATE_API AcceleratorOptions {
  /// Train on the CPU even if there are accelerators. Default:
  /// ACCELERATE_USE_CPU.
  std::optional<bool> cpu = {};
  /// Move prepared models and the batches of prepared loaders to `device()`.
  bool device_placement = true;
  /// The precision in which prepared models compute. Default:
  /// ACCELERATE_MIXED_PRECISION.
  std::optional<Precision> mixed_precision = {};
  /// Only with bf16: convert the weights of prepared models to bf16, let
  /// prepared optimizers train fp32 master weights, and accumulate gradients in
  /// fp32. Autocast is off: the model computes in bf16, and its fp32 arguments
  /// are converted to bf16. Checkpoints and `save_model` contain the master
  /// weights. Frozen parameters have no master weights and are saved as bf16.
  bool master_weights = false;
  /// Convert the reduced-precision outputs of prepared models to fp32.
  bool outputs_to_fp32 = true;
  /// Options of loss scaling, which is used with fp16.
  GradScalerOptions scaler = {};
  AccumulationOptions accumulation = {};
  /// Enable expensive checks. Raw collectives first compare their operation,
  /// dtype and shape across ranks (`ProcessGroup::check_collectives`), and
  /// every 100th backward pass compares the weights (`check_ranks_equal`).
  /// Default: ACCELERATE_DEBUG_MODE.
  std::optional<bool> debug = {};
  /// At the end of the run (in `end_training`, or when the last handle is
  /// destroyed), print a summary of what limits the speed of the steps
  /// (`StepTimes::summary`) to stderr on the main process. Default:
  /// ACCELERATE_STEP_SUMMARY, or false.
  std::optional<bool> step_summary = {};
  DdpOptions ddp = {};
  /// What is sharded across ranks. If `stage` is set, `ddp` is not used.
  ShardingOptions shard = {};
  /// The size of each dimension of the mesh of ranks. By default, all ranks
  /// belong to `shard` if models are sharded, otherwise to `replicate`. With
  /// sharding, set `replicate` to the number of copies of the model (HSDP):
  /// gathers stay within a copy, and gradients are averaged over all copies.
  /// With a single process, `replicate` and `shard` are 1. With `tensor`, ranks
  /// divide the layers of a model (docs/guide_parallelism.md). If no size is
  /// set here, the sizes that the launcher passes are used. If `pipeline`,
  /// `context` or `sequence` is above 1, `ConfigError` is thrown, because no
  /// engine supports them.
  MeshSizes parallelism = {};
  /// With `parallelism.tensor`: the modules to divide, instead of the plan that
  /// a model ships with.
  TensorPlan tensor_plan = {};
  /// A custom engine. If set, `ddp` is not used.
  OwnEngine engine = {};
  /// The allocators of parameters and gradients. Default: those of torch.
  MemoryOptions memory = {};
  /// Options that override those of every prepared loader.
  DataLoaderConfiguration data_loader = {};
  /// How often prepared schedulers advance.
  SchedulerStepping scheduler_stepping = SchedulerStepping::kPerOptimizerStep;
  /// Where `save_state` stores and `load_state` looks for checkpoints by
  /// default.
  CheckpointOptions checkpoints = {};
  /// How to connect if no `process_group` is given.
  ProcessGroupOptions connection = {};
  /// The rank of this process and the number of processes. Default: read from
  /// environment variables.
  std::optional<ProcessEnvironment> environment = {};
  /// An existing group to use (see `c10d.h` and `run_ranks`). If `environment`
  /// is not set, all ranks of the group are assumed to be on this machine.
  std::optional<ProcessGroup> process_group = {};
};

/// Whether several processes train together, and on which devices. `kMultiGpu`
/// covers accelerators of any kind.
enum class DistributedType { kNo, kMultiCpu, kMultiGpu };

} // namespace accelerate
