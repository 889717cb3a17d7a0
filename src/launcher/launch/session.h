// SPDX-License-Identifier: Apache-2.0
// A launcher running on its machine.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/process/run_report.h"
#include "launcher/launch/job.h"
#include "launcher/launch/machines/connection.h"
#include "launcher/launch/machines/protocol.h"
#include "launcher/launch/machines/remote_launchers.h"
#include "launcher/launch/plan/plan.h"
#include "launcher/launch/supervise/child_process.h"
#include "launcher/launch/supervise/event_loop.h"
#include "launcher/launch/supervise/output_router.h"
#include "launcher/launch/supervise/signal_file.h"
#include "launcher/launch/supervise/signal_merger.h"
#include "launcher/launch/supervise/signal_witness.h"
#include "launcher/launch/supervise/supervisor.h"

namespace accelerate {

struct SessionOptions {
  /// The secret that the launchers of the job share. If empty, every program on
  /// this machine may try to join.
  std::string token = {};
  /// How long launchers wait for each other.
  std::chrono::seconds join_limit{60};
  /// How long another machine may be silent.
  Patience patience = {};
  /// The file from which this process reads signals that the guardian received.
  /// When the other end is closed, everything here must end at once.
  int lifeline = -1;
  /// Whether the launcher of machine 0 started this one. Machine 0 then prints
  /// all messages. When stdin is closed, the launcher of machine 0 has ended.
  bool is_remote_controlled = false;
  /// The folder of the program that started this launcher (`notebook_launcher`)
  /// and shows its output. Empty if a user did. The outcome of the job is
  /// written to the file `ending` in it. When stdin is closed, that program has
  /// ended, and the folder is removed (`check_parent_folder`).
  std::filesystem::path parent_folder = {};
  /// Problems that `--check` found on this machine. If there are any, the job
  /// does not start.
  std::vector<std::string> problems = {};
  /// Whether machine 0 serves a page of the run.
  bool is_watched = false;
  bool opens_browser = false;
  /// Printed if a worker exits with the code for a wrong command line.
  std::string usage_hint = {};
  /// Launchers of other machines that machine 0 must start.
  std::vector<RemoteLauncher> remote_launchers = {};
};

/// Common base of the launchers of machine 0 and of the others. Handles the
/// workers of this machine, their output, and signals. Everything runs on the
/// thread that calls `run`.
class LaunchSession {
 public:
  LaunchSession(const LaunchPlan& plan, const SessionOptions& options);
  virtual ~LaunchSession() = default;
  LaunchSession(const LaunchSession&) = delete;
  LaunchSession& operator=(const LaunchSession&) = delete;

  /// Runs the job. Returns its exit code.
  int run();

 protected:
  virtual void begin() = 0;
  virtual void workers_failed(const FailureReport& report) = 0;
  virtual void workers_finished() = 0;
  virtual void workers_stopped() = 0;
  virtual void workers_cannot_start(const std::string& reason) = 0;
  virtual void interrupted(int signal) = 0;
  /// Called when the workers here have received a signal that is meant for the
  /// workers of all machines.
  virtual void pass_on(int signal) = 0;

  void start_workers(const StartOrder& order);
  /// Stops the workers. Processes that got the signal from the terminal, or
  /// with the whole process group, do not get it again.
  void stop_workers(const StopOrder& order);
  /// Handles a signal passed on by another machine. False if the workers have
  /// just got the same signal, because a scheduler sends it to all machines.
  bool take_passed_on(int signal);
  /// The report of rank 0, if it runs here. Counts its steps in all attempts.
  RunReport run_report() const;
  /// Call it when the job is over. The launcher exits when all output was read.
  void finish(int exit_code);
  void say(const std::string& line);
  /// Prints the last message, once.
  void say_ending(const std::string& summary);
  HelloMessage introduction() const;

  const LaunchPlan& plan_;
  const SessionOptions& options_;
  EventLoop loop_;
  ChildReaper reaper_;
  OutputRouter output_;
  Supervisor supervisor_;

 private:
  void take_signals();
  void collect_children();
  void take_from_guardian();
  void take_from_witness();
  void signalled(int signal, GroupSignalled group);
  bool was_delivered(int signal, bool is_passed_on);
  void request_to_end(int signal, GroupSignalled group);
  void guardian_gone();
  void parent_gone();

  struct Request {
    int signal = 0;
    GroupSignalled group = GroupSignalled::kNo;
  };

  /// The file into which rank 0 writes its report.
  UniqueFile report_file_;
  /// The number of steps in earlier attempts.
  int64_t num_steps_before_ = 0;
  SignalFileGuard signals_;
  SignalWitness witness_;
  SignalMerger merger_;
  struct Delivery {
    EventLoop::Clock::time_point time = {};
    bool was_passed_on = false;
  };

  std::map<int, Delivery> deliveries_;
  EventLoop::TimerId collect_timer_ = 0;
  std::optional<Request> first_request_;
  bool is_finishing_ = false;
  int exit_code_ = 0;
};

/// Runs the plan as machine 0 or as one of the others. Throws `ConfigError` or
/// `SystemError` if it cannot start.
int run_session(const LaunchPlan& plan, const SessionOptions& options);

} // namespace accelerate
