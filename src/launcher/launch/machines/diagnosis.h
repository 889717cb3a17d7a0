// SPDX-License-Identifier: Apache-2.0
// Finds problems of a launch in advance.
#pragma once

#include <string>
#include <vector>

#include "accelerate/process.h"
#include "core/base/internal.h"
#include "core/config/launch_config.h"
#include "core/hardware/gpu_kinds.h"
#include "core/hardware/memory.h"
#include "launcher/launch/plan/plan.h"

namespace accelerate {

enum class CheckResult { kPassed, kWarning, kFailed };

/// One line of `accelerate doctor`.
struct Finding {
  CheckResult result = CheckResult::kPassed;
  /// What was checked and found.
  std::string what = {};
  /// What to do. Empty if the check passed.
  std::string remedy = {};
};

/// Checks names, addresses, ports, interfaces, GPUs, shared memory, limits and
/// the clock, as far as `config` needs them. Takes a few seconds if hosts do
/// not answer.
std::vector<Finding> diagnose(
    const ResolvedConfig& config,
    const EnvLookup& env);

/// The fast checks of this machine alone, which a launch with `--check` runs on
/// every machine. `program` is what the workers execute.
std::vector<Finding> diagnose_machine(
    const LaunchConfig& config,
    const MachineFacts& facts,
    const std::string& program);

/// "what: remedy" of the failed checks.
std::vector<std::string> problems_of(const std::vector<Finding>& findings);

/// Whether the system finds the shared libraries of one of our programs.
ACCELERATE_INTERNAL Finding check_libraries(const std::string& program);

/// The result for shared memory of this size.
ACCELERATE_INTERNAL Finding check_shared_memory(const MemoryFigures& memory);
/// The result for GPUs: whether each can access every other's memory without
/// the CPU.
ACCELERATE_INTERNAL Finding
check_peer_access(const std::vector<Gpu>& gpus, const GpuKind& kind);
ACCELERATE_INTERNAL Finding check_file_limits(const FileLimits& limits);
/// The result for clocks: the clock of `host` is `seconds` ahead of ours.
ACCELERATE_INTERNAL Finding
check_clock(const std::string& host, double seconds);
/// The result for a connection. `error` is an errno, 0 if it succeeded.
ACCELERATE_INTERNAL Finding
check_connection(const std::string& host, int port, int error);

} // namespace accelerate
