// SPDX-License-Identifier: Apache-2.0
// The life of a job over all its machines: what happens when.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "launch/supervise/event_loop.h"

namespace accelerate {

/// How the first worker failed, from the machine it ran on.
struct FailureReport {
  int rank = 0;
  std::string host = {};
  /// The worker's own code, or 128 + n where signal n ended it.
  int exit_code = 1;
  /// "exit code 3" or "signal 9 (Killed)", and what else is worth knowing.
  std::string how = {};
  /// Of its stderr, oldest first.
  std::vector<std::string> last_lines = {};

  bool operator==(const FailureReport&) const = default;
};

/// How a job ended, told to every machine.
struct JobEnding {
  int exit_code = 0;
  /// Lines for the user; empty where all went well.
  std::string summary = {};

  bool operator==(const JobEnding&) const = default;
};

/// One machine of a job, here or behind a connection.
class Machine {
 public:
  virtual ~Machine() = default;
  /// Start the workers of attempt `attempt`, counted from 0.
  virtual void start(int attempt) = 0;
  /// End the workers with `signal`; then say that they have stopped.
  virtual void stop(int signal, bool is_to_restart) = 0;
  /// The job is over and nothing runs here.
  virtual void end(const JobEnding& ending) = 0;
};

/// Decides for all machines. Any failure stops every machine; when all have
/// stopped, the job starts again (while restarts are left) or ends. Exactly
/// one `end` reaches every machine that was not lost.
///
/// A lost machine ends the job too, or restarts it once the machine is back.
///
/// Between restarts it waits: 0.1 s, twice as long each time, 30 s at most. An
/// attempt that ran for a minute begins the count anew.
class ACCELERATE_API Job {
 public:
  using Say = std::function<void(const std::string& line)>;
  /// `machines` in the order of their ranks; they and the loop outlive the job.
  /// `return_limit` is how long a restart waits for a machine that was lost.
  Job(EventLoop& loop,
      std::vector<Machine*> machines,
      int max_restarts,
      std::chrono::seconds return_limit,
      Say say);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void start();
  void machine_failed(size_t machine, const FailureReport& report);
  /// The workers of the machine could not be started; `reason` is a line.
  void machine_cannot_start(size_t machine, const std::string& reason);
  /// Every worker of the machine has returned 0.
  void machine_finished(size_t machine);
  /// What a stop order asked for is done.
  void machine_stopped(size_t machine);
  /// The machine cannot be reached any more; `why` completes the sentence
  /// "machine 1 (host) ...".
  void
  machine_lost(size_t machine, const std::string& host, const std::string& why);
  /// A machine that was lost can be reached again, and runs nothing.
  void machine_returned(size_t machine);
  /// Whether a restart waits for this machine to come back.
  bool is_waiting_for(size_t machine) const;
  /// Somebody asked the launcher of a machine to end.
  void interrupt(int signal, const std::string& host);

 private:
  enum class State { kWaiting, kRunning, kStopping, kRestarting, kOver };
  enum class Phase { kRunning, kFinished, kStopping, kStopped, kLost };

  void stop_all(int signal, State next);
  void go_on_when_all_stopped();
  void start_later();
  bool is_any(Phase phase) const;
  void end(const JobEnding& ending);

  EventLoop& loop_;
  std::vector<Machine*> machines_;
  std::vector<Phase> phases_;
  int max_restarts_;
  std::chrono::seconds return_limit_;
  Say say_;
  State state_ = State::kWaiting;
  int attempt_ = 0;
  int num_quick_restarts_ = 0;
  EventLoop::Clock::time_point attempt_start_;
  EventLoop::TimerId restart_timer_ = 0;
  EventLoop::TimerId return_timer_ = 0;
  JobEnding ending_;
};

/// "first failure: rank 1 on node-b ended with exit code 7", and the last lines
/// it wrote.
ACCELERATE_API std::string summarise(const FailureReport& report);

} // namespace accelerate
