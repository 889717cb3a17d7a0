// SPDX-License-Identifier: Apache-2.0
// Owns the worker processes of one machine.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/launch/job.h"
#include "launcher/launch/supervise/child_process.h"
#include "launcher/launch/supervise/event_loop.h"
#include "launcher/launch/supervise/oom_kills.h"
#include "launcher/launch/supervise/output_router.h"

namespace accelerate {

/// One process to start.
struct WorkerSpec {
  int rank = 0;
  ChildCommand command = {};
  /// The folder for the worker's output. Empty means no files.
  std::filesystem::path log_folder = {};
};

/// Whether the process group of the launcher has already received a signal. In
/// this case, only processes outside of the group must get it.
enum class GroupSignalled { kNo, kYes };

/// When workers get a signal: `kWhenHandled` gives those that are still
/// starting half of the grace period to install a handler for it.
enum class Timing { kAtOnce, kWhenHandled };

enum class WorkersState {
  kDone, // nothing runs: before the start, and after the end.
  kStarting,
  kRunning,
  kFailed, // a worker failed; the others run until `stop`.
  kStopping,
  kRestarting, // like `kStopping`, but the job will start again.
};

/// Starts the workers, reports how they end, and stops them with everything
/// below them. The process must have called `adopt_orphans`, so that no
/// descendant escapes.
///
/// Used on the loop's thread only. Callbacks are called by the loop, and by
/// `start` and `stop`.
class Supervisor {
 public:
  struct Callbacks {
    /// Called with the worker that caused a failure, once per start. If the
    /// first worker to end only reports that another rank is gone, that other
    /// rank has two seconds to end.
    std::function<void(const FailureReport&)> failed = {};
    /// Called when all workers have returned 0 and no process that they started
    /// is left.
    std::function<void()> finished = {};
    /// Called after `stop`, when no process is left.
    std::function<void()> stopped = {};
  };

  /// `grace` is the time from the first signal to SIGKILL.
  Supervisor(
      EventLoop& loop,
      ChildReaper& reaper,
      OutputRouter& output,
      std::chrono::seconds grace,
      Callbacks callbacks);

  WorkersState state() const { return state_; }
  /// Starts all workers or none: throws `SystemError` if one cannot start,
  /// after stopping the others.
  void start(const std::vector<WorkerSpec>& workers);
  /// Sends `signal` to all workers and all processes below them. SIGKILL
  /// follows after the grace period. Once the workers themselves have ended,
  /// the processes that they left behind get at most 3 s. A `signal` of SIGKILL
  /// kills at once. SIGUSR1 only asks the workers themselves to leave (SIGTERM
  /// if they do not handle it). SIGTERM follows after a separate grace period.
  /// SIGQUIT is sent to processes that handle it. The others get SIGABRT, which
  /// makes Python print its stacks. Always ends: a process that not even
  /// SIGKILL ends (it waits in the kernel) is named and abandoned.
  ///
  /// With `Timing::kWhenHandled`, a worker gets SIGTERM once it or a process
  /// below it handles it, and after half of the grace period in any case.
  void stop(
      int signal,
      bool is_to_restart = false,
      GroupSignalled group = GroupSignalled::kNo,
      Timing timing = Timing::kAtOnce);
  /// How the workers that have ended exited, combined.
  ExitSummary exit_summary() const;
  /// Passes a signal on to the workers. A signal that stops or continues
  /// processes is also sent to all processes below them. SIGUSR1 and SIGUSR2
  /// never end a worker: a worker without a handler gets them once it has
  /// installed one. After half of the grace period they are dropped with a
  /// message. If the job restarts before any worker took the signal, or if no
  /// worker runs, the workers of the next start get it.
  void forward(int signal, GroupSignalled group);
  /// Excludes a child of this process (ssh) from `stop`.
  void spare(pid_t pid) { spared_.insert(pid); }
  /// Call it after each `ChildReaper::collect`: orphans may be gone.
  void look_again();

 private:
  struct Worker {
    pid_t pid = 0;
    int rank = 0;
    std::optional<int> wait_status = {};
    std::filesystem::path error_file = {};
    /// Signals held until a handler is installed, with their deadline.
    std::map<int, EventLoop::Clock::time_point> held = {};
  };

  std::string describe_finished_ranks() const;
  void report_failure(size_t index);
  FailureReport describe_failure(const Worker& worker);
  void drop_consequences();
  void worker_ended(size_t index, int wait_status);
  void ask_to_leave();
  void hold(Worker& worker, int signal);
  void deliver_held();
  void deliver(const Worker& worker, int signal);
  void forget_held();
  void keep_for_next_start();
  void kill_after(std::chrono::milliseconds grace);
  void kill_everything();
  void kill_what_was_started();
  void give_up();
  void signal_everything(
      int signal,
      GroupSignalled group = GroupSignalled::kNo);
  bool any_running() const;
  bool is_stopping() const {
    return state_ == WorkersState::kStopping ||
           state_ == WorkersState::kRestarting;
  }

  EventLoop& loop_;
  ChildReaper& reaper_;
  OutputRouter& output_;
  std::chrono::milliseconds grace_;
  Callbacks callbacks_;
  WorkersState state_ = WorkersState::kDone;
  std::vector<Worker> workers_;
  /// Signals that at least one worker of this start has taken.
  std::set<int> taken_;
  /// Signals for the workers of the next start.
  std::set<int> kept_;
  std::optional<OomKills> oom_kills_;
  std::set<pid_t> spared_;
  EventLoop::TimerId hold_timer_ = 0;
  EventLoop::TimerId ask_timer_ = 0;
  EventLoop::TimerId kill_timer_ = 0;
  EventLoop::TimerId give_up_timer_ = 0;
  /// The first worker that failed, while the supervisor waits for another one
  /// that may be the cause.
  std::optional<size_t> suspect_;
  EventLoop::TimerId suspect_timer_ = 0;
  /// The last error of the worker that was reported as failed.
  std::string reported_error_;
  bool is_killing_ = false;
  bool is_sweeping_ = false; // all workers have ended; ending what they left
};

/// The name of this machine.
std::string host_name();

} // namespace accelerate
