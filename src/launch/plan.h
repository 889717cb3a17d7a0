// SPDX-License-Identifier: Apache-2.0
// What to start: from the options of a launch to one command per worker.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

inline constexpr int kMaxProcesses = 4096;

struct LaunchOptions {
  int num_processes = 1;
  /// The program or .py script, and its arguments.
  std::vector<std::string> command = {};
};

/// One process to start: `command` with `variables` added to the environment.
struct WorkerSpec {
  int rank = 0;
  std::vector<std::string> command = {};
  std::map<std::string, std::string> variables = {};
};

/// One worker per process, with torchrun's variables and a free port of this
/// machine to meet at. OMP_NUM_THREADS, where `env` has none, shares the cores
/// out.
ACCELERATE_API std::vector<WorkerSpec> plan_workers(
    const LaunchOptions& options,
    const EnvLookup& env);

/// A TCP port of the loopback interface that nobody listens on.
ACCELERATE_API int find_free_port();

} // namespace accelerate
