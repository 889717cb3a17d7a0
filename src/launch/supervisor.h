// SPDX-License-Identifier: Apache-2.0
// Owns the worker processes of one machine from start to end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <ostream>
#include <vector>

#include "accelerate/export.h"
#include "launch/plan.h"

namespace accelerate {

/// Starts workers, waits for them, and ends all of them when one fails or when
/// this process gets SIGINT or SIGTERM. Each worker leads a process group of
/// its own, so that what it started goes with it; a worker dies with the
/// launcher. Workers share the launcher's standard streams.
///
/// `run` takes over SIGINT, SIGTERM and SIGCHLD while it runs: call it from the
/// only thread that waits for children.
class ACCELERATE_API Supervisor {
 public:
  /// Reports go to `log`, one line each.
  explicit Supervisor(std::ostream& log) : log_(log) {}

  /// Returns 0 when every worker returned 0; else the exit code of the first
  /// that failed, 128 + n where signal n ended it, or 128 + n where this
  /// process got signal n. Throws `SystemError` where a worker cannot start.
  int run(const std::vector<WorkerSpec>& workers);

 private:
  struct Child {
    pid_t pid = 0;
    int rank = 0;
    std::optional<int> wait_status;
  };

  void start(const WorkerSpec& worker);
  /// Waits for a signal; SIGKILLs stragglers once the grace period is over.
  void wait_for_event(int signals);
  void collect_children();
  void report_failure(const Child& child);
  void stop_all(int signal);
  void signal_running(int signal);
  bool any_running() const;

  std::ostream& log_;
  std::vector<Child> children_;
  std::optional<int> exit_code_;
  std::optional<std::chrono::steady_clock::time_point> kill_at_;
};

} // namespace accelerate
