// SPDX-License-Identifier: Apache-2.0
// The life cycle of a job over all its machines.
#pragma once

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/process/run_report.h"
#include "launcher/launch/supervise/event_loop.h"

namespace accelerate {

/// How the first worker failed, reported by its machine.
struct FailureReport {
  int rank = 0;
  std::string host = {};
  /// The worker's own code, or 128 + n if signal n ended it.
  int exit_code = 1;
  /// What happened to the worker: "failed with exit code 3".
  std::string how = {};
  /// The end of the worker's stderr: a traceback, or just the last lines.
  std::vector<std::string> last_lines = {};
  /// Whether the console of this launcher already shows `last_lines`.
  bool is_shown = false;

  bool operator==(const FailureReport&) const = default;
};

/// How a job ended, sent to every machine.
struct JobEnding {
  int exit_code = 0;
  /// Lines for the user. Empty on success.
  std::string summary = {};

  bool operator==(const JobEnding&) const = default;
};

/// How the workers of a stopped machine have exited.
struct ExitSummary {
  /// Whether at least one worker exited with `kExitPreempted`.
  bool is_any_preempted = false;
  /// Whether all workers exited with `kExitPreempted` or 0.
  bool is_orderly = true;

  /// Whether all workers have saved what they need to resume.
  bool is_preempted() const { return is_any_preempted && is_orderly; }
  bool operator==(const ExitSummary&) const = default;
};

/// How a machine must end its workers.
struct StopOrder {
  /// SIGUSR1 asks the workers to leave at the end of a step. SIGTERM follows
  /// later.
  int signal = SIGTERM;
  bool is_to_restart = false;
  /// Whether a launcher was asked to end. If so, workers that are still
  /// starting get SIGTERM only after they have installed a handler. Otherwise
  /// something failed, and there is no reason to wait.
  bool is_request = false;

  bool operator==(const StopOrder&) const = default;
};

/// One machine of a job, local or behind a connection.
class Machine {
 public:
  virtual ~Machine() = default;
  /// Starts the workers of attempt `attempt`, counted from 0.
  virtual void start(int attempt) = 0;
  /// Ends the workers. The machine then reports that they have stopped.
  virtual void stop(const StopOrder& order) = 0;
  /// Says that the job is over. Call it only when no workers run there.
  virtual void end(const JobEnding& ending) = 0;
};

struct JobOptions {
  /// The number of restarts after failures.
  int max_restarts = 0;
  /// How long a restart waits for machines that it needs.
  std::chrono::seconds return_limit{60};
  /// If set, the job is elastic, and runs with at least this many machines.
  std::optional<int> least_machines = {};
};

/// Controls all machines. Any failure stops every machine. When all have
/// stopped, the job restarts (while restarts are left) or ends. Every machine
/// that was not lost receives exactly one `end`.
///
/// If a worker exits with `kExitPreempted`, all workers are asked to leave and
/// restarted, which does not count as a restart.
///
/// A lost machine also ends the job, or restarts it once the machine is back.
/// An elastic job continues with the remaining machines, and restarts when one
/// joins. Neither counts as a restart. A failure that results from a lost
/// machine does not count either. A machine that does not even answer the stop
/// order is assumed to have been lost before the failure.
///
/// Delays between restarts start at 0.1 s and double up to 30 s. An attempt
/// that ran for a minute resets them.
class ACCELERATE_INTERNAL Job {
 public:
  using Say = std::function<void(const std::string& line)>;
  /// `machines` are ordered by index. They and `loop` must outlive the job.
  Job(EventLoop& loop,
      std::vector<Machine*> machines,
      const JobOptions& options,
      Say say);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// `absent` are the indices of an elastic job's machines that have not
  /// joined.
  void start(const std::vector<size_t>& absent = {});
  void machine_failed(size_t machine, const FailureReport& report);
  /// The workers of the machine could not be started. `reason` is one line.
  void machine_cannot_start(size_t machine, const std::string& reason);
  /// All workers of the machine have returned 0.
  void machine_finished(size_t machine);
  /// The machine has carried out a stop order.
  void machine_stopped(size_t machine, const ExitSummary& exit_summary = {});
  /// The machine is unreachable. `why` completes the sentence "machine 1 (host)
  /// ...".
  void
  machine_lost(size_t machine, const std::string& host, const std::string& why);
  /// A lost machine is reachable again, or a new machine has joined an elastic
  /// job. It does not run any workers.
  void machine_joined(size_t machine, const std::string& host);
  /// The machine of an elastic job was asked to end. It stops by itself, and
  /// the job continues on the others.
  void machine_leaves(size_t machine, const std::string& host, int signal);
  /// Whether the machine takes part in the job. Otherwise, it was lost or never
  /// joined.
  bool is_here(size_t machine) const {
    return phases_[machine] != Phase::kLost;
  }
  /// Whether a restart waits for this machine to rejoin.
  bool is_waiting_for(size_t machine) const;
  /// The launcher of a machine was asked to end, while `num_processes` of the
  /// job were running.
  void interrupt(int signal, const std::string& host, int num_processes);

 private:
  enum class State { kWaiting, kRunning, kStopping, kRestarting, kOver };
  enum class Phase {
    kRunning,
    kFinished,
    kStopping,
    kLeaving, // like `kStopping`; becomes `kLost` afterwards
    kStopped,
    kLost,
  };

  bool is_elastic() const { return options_.least_machines.has_value(); }
  void start_attempt();
  /// Returns whether this restart is allowed. Counts it once.
  bool count_restart();
  void drop_machine(size_t machine, const std::string& what);
  void stop_all(int signal, State next, bool is_request = false);
  void end_or_restart_when_all_stopped();
  void wait_for_machines();
  void start_later();
  bool is_any(Phase phase) const;
  int num_here() const;
  void end(const JobEnding& ending);

  EventLoop& loop_;
  std::vector<Machine*> machines_;
  std::vector<Phase> phases_;
  JobOptions options_;
  Say say_;
  State state_ = State::kWaiting;
  int attempt_ = 0;
  int num_restarts_ = 0;
  int num_quick_restarts_ = 0;
  /// Whether `num_restarts_` includes the current restart.
  bool is_counted_ = false;
  /// Whether workers are being stopped because one has failed.
  bool is_failure_ = false;
  /// Whether the job was asked to end by SIGTERM, which schedulers send before
  /// they take machines away.
  bool is_preempted_ = false;
  /// Whether some machines may have received only SIGUSR1.
  bool is_asking_ = false;
  ExitSummary exit_summary_;
  EventLoop::Clock::time_point attempt_start_;
  EventLoop::TimerId restart_timer_ = 0;
  EventLoop::TimerId return_timer_ = 0;
  JobEnding ending_;
};

/// "[launch] Finished in 2 min 3 s: 1,200 steps (9.8 steps/s), last checkpoint
/// runs/a/checkpoint_3, logs in runs/a". Leaves out unknown facts. Empty if
/// nothing is known. Paths below `folder` are shown relative to it.
ACCELERATE_INTERNAL std::string describe_run(
    const RunReport& report,
    std::chrono::duration<double> duration,
    const std::filesystem::path& folder);

/// "[launch] Interrupted", followed by the host if it is not empty.
std::string describe_interrupt(int signal, const std::string& host);

/// "Rank 1 on node-b failed with exit code 7", followed by its last output.
/// Names the host only if the job has several.
std::string summarise(const FailureReport& report, bool names_host);

} // namespace accelerate
