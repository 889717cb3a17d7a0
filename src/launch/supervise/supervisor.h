// SPDX-License-Identifier: Apache-2.0
// Owns the worker processes of one machine from start to end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "launch/job.h"
#include "launch/supervise/child_process.h"
#include "launch/supervise/event_loop.h"
#include "launch/supervise/output_router.h"

namespace accelerate {

/// One process to start.
struct WorkerSpec {
  int rank = 0;
  ChildCommand command = {};
};

enum class WorkersState {
  kDone, // Nothing runs: before the start, and after the end.
  kStarting,
  kRunning,
  kFailed, // A worker failed; the others run until `stop` is called.
  kStopping,
  kRestarting, // As stopping; the job will start again.
};

/// Starts the workers, tells how they end, and stops them with everything
/// below them: the process must have called `adopt_orphans`, so that no
/// descendant escapes.
///
/// One thread: the loop's. Callbacks come from the loop, and from `start` and
/// `stop` themselves.
class ACCELERATE_API Supervisor {
 public:
  struct Callbacks {
    /// The first worker that failed; once per start.
    std::function<void(const FailureReport&)> failed = {};
    /// All workers returned 0 and nothing that they started is left.
    std::function<void()> finished = {};
    /// After `stop`: nothing is left.
    std::function<void()> stopped = {};
  };

  Supervisor(
      EventLoop& loop,
      ChildReaper& reaper,
      OutputRouter& output,
      Callbacks callbacks);

  WorkersState state() const { return state_; }
  /// Starts all workers or none: throws `SystemError` where one cannot start,
  /// with the others gone.
  void start(const std::vector<WorkerSpec>& workers, int attempt);
  /// Sends `signal` to all workers and all below them, SIGKILL after 3 s to
  /// those who are left. SIGKILL kills at once.
  void stop(int signal, bool is_to_restart = false);
  /// Children of this process that `stop` leaves alone (ssh).
  void spare(pid_t pid) { spared_.insert(pid); }
  /// Call it after each `ChildReaper::collect`: orphans may be gone.
  void look_again();

 private:
  struct Worker {
    pid_t pid = 0;
    int rank = 0;
    std::optional<int> wait_status = {};
  };

  std::string who_left_before() const;
  void worker_ended(size_t index, int wait_status);
  void signal_everything(int signal);
  bool any_running() const;
  bool is_stopping() const {
    return state_ == WorkersState::kStopping ||
           state_ == WorkersState::kRestarting;
  }

  EventLoop& loop_;
  ChildReaper& reaper_;
  OutputRouter& output_;
  Callbacks callbacks_;
  WorkersState state_ = WorkersState::kDone;
  std::vector<Worker> workers_;
  std::set<pid_t> spared_;
  EventLoop::TimerId kill_timer_ = 0;
  bool is_killing_ = false;
  bool is_sweeping_ = false; // All returned 0; ending what they left.
};

/// The name of this machine.
ACCELERATE_API std::string host_name();

} // namespace accelerate
