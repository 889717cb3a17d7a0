// SPDX-License-Identifier: Apache-2.0
#include "training/run/assemble.h"

#include <algorithm>
#include <iostream>
#include <tuple>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/config/run_settings.h"
#include "core/observe/hint.h"
#include "core/observe/rank_record.h"
#include "core/observe/script_stack.h"
#include "core/observe/watchdog.h"
#include "training/comm/connect.h"
#include "training/comm/process_group_impl.h"
#include "training/device/accelerator_kinds.h"
#include "training/device/device.h"
#include "training/verification/step_recorder.h"

namespace accelerate {
namespace {

ProcessTopology topology_of(const AcceleratorOptions& options) {
  if (options.environment) {
    return options.environment->topology;
  }
  const int rank = options.process_group->rank();
  const int size = options.process_group->world_size();
  return {rank, size, rank, size, 0};
}

void check_fit(const ProcessTopology& topology, const ProcessGroup& group) {
  if (topology.rank != group.rank() ||
      topology.world_size != group.world_size()) {
    throw ConfigError(str_cat(
        "[Accelerator] The environment specifies rank ",
        topology.rank,
        " of ",
        topology.world_size,
        ", but the process group has rank ",
        group.rank(),
        " of ",
        group.world_size(),
        ". Pass an environment and a group of the same process"));
  }
}

// One autograd thread serves each device. Ranks that are threads and share a
// device would deadlock in backward.
void refuse_threads_on_one_device(const Assembly& assembly) {
  const int size = assembly.topology.world_size;
  const auto* kind = kind_of(assembly.device);
  if (assembly.group.ranks_are_threads() && kind != nullptr &&
      size > kind->count()) {
    throw ConfigError(str_cat(
        "[Accelerator] ",
        size,
        " ranks in threads cannot share ",
        kind->count(),
        " ",
        kind->name(),
        " device(s). Set .cpu = true, or use processes"));
  }
}

// An accelerator's collectives usually need one device per rank. Ranks that
// share a device use the CPU's collectives, unless the user has chosen
// otherwise.
void warn_if_devices_are_shared(const Assembly& assembly) {
  const auto& topology = assembly.topology;
  const auto* kind = kind_of(assembly.device);
  if (kind != nullptr && topology.world_size > 1 &&
      topology.local_world_size > kind->count() && topology.is_local_main() &&
      assembly.group.backend() != kind->collective_backend) {
    std::cerr << str_cat(
        "[Accelerator] ",
        topology.local_world_size,
        " processes share ",
        kind->count(),
        " ",
        kind->name(),
        " device(s), so they communicate through Gloo on the CPU, which is "
        "slow. Start one process per device.\n");
  }
}

void refuse_what_the_device_lacks(const Assembly& assembly) {
  const PrecisionName& row = find_precision(assembly.precision);
  const auto* kind = kind_of(assembly.device);
  const bool runs = kind == nullptr ? row.runs_on_cpu
                                    : assembly.precision != Precision::kFp16 ||
                                          kind->has_fp16;
  if (!runs) {
    throw ConfigError(str_cat(
        "[Accelerator] mixed precision ",
        row.name,
        " needs a GPU, but this process trains on ",
        kind == nullptr ? "the CPU" : kind->name() + " devices",
        ". Use bf16"));
  }
}

// Watched even in a run of one process. It waits for nobody, but a report can
// query its position.
void watch_this_thread(const ProcessGroup& group) {
  if (!group.is_solo()) {
    group.impl()->join_record();
    return;
  }
  static Membership& alone = [&]() -> Membership& {
    auto membership = std::make_unique<Membership>();
    membership->threshold = hang_threshold(std::nullopt);
    return Watchdog::instance().join(std::move(membership));
  }();
  RankRecord::of_this_thread().join(alone);
}

// Rejects sizes of the mesh that no layer serves.
void refuse_unserved(const MeshSizes& sizes) {
  const auto served = served_dimensions();
  const std::tuple<const char*, int, MeshDimension> asked[] = {
      {"pipeline", sizes.pipeline, MeshDimension::kPipeline},
      {"context", sizes.context, MeshDimension::kContext},
      {"sequence", sizes.sequence, MeshDimension::kSequence},
      {"tensor", sizes.tensor, MeshDimension::kTensor}};
  for (const auto& [name, size, dimension] : asked) {
    // The layers of Python modules cannot be divided yet.
    const bool is_for_cpp =
        dimension == MeshDimension::kTensor && has_script_stack();
    if (size > 1 && (is_for_cpp || (served & dimension) == MeshDimension())) {
      throw ConfigError(str_cat(
          "[Accelerator] The parallelism configuration sets a ",
          name,
          " size of ",
          size,
          ", which is not supported. Leave it at 1, so that all processes are "
          "data-parallel"));
    }
  }
}

Mesh mesh_of(
    const ProcessGroup& group,
    const AcceleratorOptions& options,
    const RunSettings& settings) {
  const int stage = static_cast<int>(options.shard.stage);
  if (stage < 0 || stage > static_cast<int>(ShardStage::kParameters)) {
    throw ConfigError(str_cat(
        "[Accelerator] The sharding stage is ",
        stage,
        ". Use a stage from 0 to 3"));
  }
  auto sizes = settings.parallelism(options.parallelism);
  refuse_unserved(sizes);
  if (stage == 0 && sizes.shard > 1) {
    throw ConfigError(str_cat(
        "[Accelerator] The parallelism configuration sets a shard size of ",
        sizes.shard,
        ", but nothing is sharded. ",
        hint(
            "Set .shard.stage to at least 1",
            "Pass a FullyShardedDataParallelPlugin or a DeepSpeedPlugin with "
            "at least stage 1")));
  }
  if (group.is_solo()) {
    sizes.replicate = std::min(sizes.replicate, 1);
    sizes.shard = std::min(sizes.shard, 1);
    const auto* recorder = StepRecorder::get();
    if (recorder != nullptr && recorder->is_reference()) {
      sizes.tensor = 1;
    }
  }
  if (stage == 0 && sizes.shard == 0) {
    sizes.shard = 1;
  } else if (stage > 0 && sizes.shard == 0 && sizes.replicate == 0) {
    sizes.replicate = 1;
  }
  return Mesh(group, sizes);
}

} // namespace

DistributedType distributed_type_of(
    const ProcessGroup& group,
    c10::Device device) {
  if (group.is_solo()) {
    return DistributedType::kNo;
  }
  return kind_of(device) != nullptr ? DistributedType::kMultiGpu
                                    : DistributedType::kMultiCpu;
}

std::string name_of(DistributedType type, c10::Device device) {
  switch (type) {
    case DistributedType::kMultiGpu:
      return kind_of(device)->distributed_type;
    case DistributedType::kMultiCpu:
      return "MULTI_CPU";
    case DistributedType::kNo:
      break;
  }
  return "NO";
}

Assembly assemble(const AcceleratorOptions& options, const EnvLookup& env) {
  Assembly assembly;
  const RunSettings settings(env);
  const bool cpu = settings.cpu(options.cpu);
  if (options.process_group) {
    assembly.topology = topology_of(options);
    assembly.group = *options.process_group;
    check_fit(assembly.topology, assembly.group);
  } else {
    const auto environment =
        options.environment ? *options.environment : detect_environment(env);
    assembly.topology = environment.topology;
    // Select the device before creating the group, because NCCL uses the
    // thread's current one.
    select_device(assembly.topology.local_rank, cpu);
    assembly.group = shared_connection(environment, options.connection, cpu);
  }
  assembly.mesh = mesh_of(assembly.group, options, settings);
  assembly.device = select_device(assembly.topology.local_rank, cpu);
  refuse_threads_on_one_device(assembly);
  assembly.precision = settings.mixed_precision(options.mixed_precision);
  refuse_what_the_device_lacks(assembly);
  auto ddp = options.ddp;
  if (StepRecorder::get() != nullptr) {
    ddp.compression = Compression::kNone;
  }
  assembly.engines = EnginePlan(
      {.ddp = ddp,
       .shard = options.shard,
       .own = options.engine,
       .master_weights = options.master_weights,
       .tensor_plan = options.tensor_plan,
       .precision = assembly.precision,
       .mesh = assembly.mesh});
  assembly.gradient_accumulation_steps =
      settings.gradient_accumulation_steps(options.accumulation.num_steps);
  assembly.debug = settings.debug(options.debug);
  assembly.step_summary = settings.step_summary(options.step_summary);
  if (assembly.debug) {
    assembly.group.check_collectives();
  }
  watch_this_thread(assembly.group);
  warn_if_devices_are_shared(assembly);
  // The Python package passes its environment, and reads this setting itself.
  if (!options.environment && settings.fast() && assembly.topology.rank == 0) {
    std::cerr << "[Accelerator] --fast applies only to Python programs. In "
                 "C++, record steps with Accelerator::capture\n";
  }
  return assembly;
}

} // namespace accelerate
