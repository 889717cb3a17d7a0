// SPDX-License-Identifier: Apache-2.0
// The life of a job over all its machines: what happens when.
#pragma once

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "launch/supervise/event_loop.h"
#include "process/run_report.h"

namespace accelerate {

/// How the first worker failed, from the machine it ran on.
struct FailureReport {
  int rank = 0;
  std::string host = {};
  /// The worker's own code, or 128 + n where signal n ended it.
  int exit_code = 1;
  /// What happened to it: "failed with exit code 3".
  std::string how = {};
  /// Of its stderr, oldest first: a traceback, else just the last lines.
  std::vector<std::string> last_lines = {};
  /// They are on the console of this launcher already.
  bool is_shown = false;

  bool operator==(const FailureReport&) const = default;
};

/// How a job ended, told to every machine.
struct JobEnding {
  int exit_code = 0;
  /// Lines for the user; empty where all went well.
  std::string summary = {};

  bool operator==(const JobEnding&) const = default;
};

/// How the workers of a machine have left by the time it has stopped.
struct Departure {
  /// At least one left with `kExitPreempted`.
  bool is_any_preempted = false;
  /// All left with that code or with 0.
  bool is_orderly = true;

  /// All have saved what is needed to go on.
  bool is_preempted() const { return is_any_preempted && is_orderly; }
  bool operator==(const Departure&) const = default;
};

/// How a machine has to end its workers.
struct StopOrder {
  /// SIGUSR1 asks them to leave at a step, before SIGTERM does.
  int signal = SIGTERM;
  bool is_to_restart = false;
  /// Somebody asked a launcher to end: workers that are still starting get
  /// SIGTERM once they handle it. Else something failed, and nobody waits.
  bool is_request = false;

  bool operator==(const StopOrder&) const = default;
};

/// One machine of a job, here or behind a connection.
class Machine {
 public:
  virtual ~Machine() = default;
  /// Start the workers of attempt `attempt`, counted from 0.
  virtual void start(int attempt) = 0;
  /// End the workers; then say that they have stopped.
  virtual void stop(const StopOrder& order) = 0;
  /// The job is over and nothing runs here.
  virtual void end(const JobEnding& ending) = 0;
};

struct JobOptions {
  /// After failures.
  int max_restarts = 0;
  /// How long a restart waits for machines that it needs.
  std::chrono::seconds return_limit{60};
  /// Set: the job is elastic, and runs with that many machines or more.
  std::optional<int> least_machines = {};
};

/// Decides for all machines. Any failure stops every machine; when all have
/// stopped, the job starts again (while restarts are left) or ends. Exactly
/// one `end` reaches every machine that was not lost.
///
/// A worker that leaves with `kExitPreempted` has all workers asked to leave
/// and started again, which does not count as a restart.
///
/// A lost machine ends the job too, or restarts it once the machine is back.
/// An elastic job goes on with those that are left, and starts again where one
/// comes; neither counts as a restart. A failure that was the consequence of a
/// loss does not either: a machine that does not even answer the stop order
/// was lost before.
///
/// Between restarts it waits: 0.1 s, twice as long each time, 30 s at most. An
/// attempt that ran for a minute begins the count anew.
class ACCELERATE_API Job {
 public:
  using Say = std::function<void(const std::string& line)>;
  /// `machines` by their places; they and the loop outlive the job.
  Job(EventLoop& loop,
      std::vector<Machine*> machines,
      const JobOptions& options,
      Say say);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// `absent` are the places of an elastic job whose machines have not come.
  void start(const std::vector<size_t>& absent = {});
  void machine_failed(size_t machine, const FailureReport& report);
  /// The workers of the machine could not be started; `reason` is a line.
  void machine_cannot_start(size_t machine, const std::string& reason);
  /// Every worker of the machine has returned 0.
  void machine_finished(size_t machine);
  /// What a stop order asked for is done.
  void machine_stopped(size_t machine, const Departure& departure = {});
  /// The machine cannot be reached any more; `why` completes the sentence
  /// "machine 1 (host) ...".
  void
  machine_lost(size_t machine, const std::string& host, const std::string& why);
  /// A machine that was lost can be reached again, or one has come to an
  /// elastic job; it runs nothing.
  void machine_came(size_t machine, const std::string& host);
  /// The machine of an elastic job was told to end, does so by itself, and
  /// leaves the job to the others.
  void machine_leaves(size_t machine, const std::string& host, int signal);
  /// Whether the machine belongs to the job; else it was lost or never came.
  bool is_here(size_t machine) const {
    return phases_[machine] != Phase::kLost;
  }
  /// Whether a restart waits for this machine to come back.
  bool is_waiting_for(size_t machine) const;
  /// Somebody asked the launcher of a machine to end, while `num_processes`
  /// of the job were running.
  void interrupt(int signal, const std::string& host, int num_processes);

 private:
  enum class State { kWaiting, kRunning, kStopping, kRestarting, kOver };
  enum class Phase {
    kRunning,
    kFinished,
    kStopping,
    kLeaving, // As stopping, but lost afterwards.
    kStopped,
    kLost,
  };

  bool is_elastic() const { return options_.least_machines.has_value(); }
  void start_attempt();
  /// Whether this restart may be made; it counts once.
  bool count_restart();
  void part_with(size_t machine, const std::string& what);
  void stop_all(int signal, State next, bool is_request = false);
  void go_on_when_all_stopped();
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
  /// The restart that is under way is one of `num_restarts_`.
  bool is_counted_ = false;
  /// Workers are stopped because one has failed.
  bool is_failure_ = false;
  /// SIGTERM, as a scheduler sends it before it takes the machines.
  bool is_preempted_ = false;
  /// Some machines may have got no other stop order than SIGUSR1.
  bool is_asking_ = false;
  Departure departure_;
  EventLoop::Clock::time_point attempt_start_;
  EventLoop::TimerId restart_timer_ = 0;
  EventLoop::TimerId return_timer_ = 0;
  JobEnding ending_;
};

/// "[launch] Finished in 2 min 3 s: 1,200 steps (9.8 steps/s), last checkpoint
/// runs/a/checkpoint_3, logs in runs/a", as far as it is known; empty if
/// nothing is. Paths below `folder` are relative to it.
ACCELERATE_API std::string describe_run(
    const RunReport& report,
    std::chrono::duration<double> duration,
    const std::filesystem::path& folder);

/// "[launch] Interrupted", and where if `host` is not empty.
ACCELERATE_API std::string describe_interrupt(
    int signal,
    const std::string& host);

/// "Rank 1 on node-b failed with exit code 7", and what it wrote last. The host
/// only if the job has several.
ACCELERATE_API std::string summarise(
    const FailureReport& report,
    bool names_host);

} // namespace accelerate
