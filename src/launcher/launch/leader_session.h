// SPDX-License-Identifier: Apache-2.0
// The launcher of machine 0, or of the only machine.
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "core/tracking/run_exit.h"
#include "launcher/launch/job.h"
#include "launcher/launch/machines/control_server.h"
#include "launcher/launch/session.h"
#include "launcher/launch/watch_child.h"

namespace accelerate {

/// Waits for the other machines, if there are any, and controls the job.
class LeaderSession : public LaunchSession {
 public:
  LeaderSession(const LaunchPlan& plan, const SessionOptions& options);
  ~LeaderSession() override;

 protected:
  void begin() override;
  void workers_failed(const FailureReport& report) override;
  void workers_finished() override;
  void workers_stopped() override;
  void workers_cannot_start(const std::string& reason) override;
  void interrupted(int signal) override;
  void pass_on(int signal) override;

 private:
  class LocalMachine;
  class RemoteMachine;

  void listen();
  void start_remote_launchers();
  void start_remote_launcher(size_t machine);
  void remote_launcher_ended(size_t machine, int wait_status);
  /// Starts the job if enough machines have joined.
  void begin_if_enough_joined();
  void begin_with_joined_machines();
  std::string describe_problems(const std::vector<HelloMessage>& roll) const;
  void join_time_over();
  void received(size_t machine, const Message& message);
  void lost(size_t machine, const std::string& why);
  void joined(size_t machine);
  /// Restarts the launcher of a lost machine, repeatedly if necessary.
  void call_back(size_t machine);
  void begin_job();
  StartOrder order_for(size_t machine, int attempt);
  /// The number of processes of the current attempt, on all machines.
  int num_processes() const;
  /// Determines which machines take part in an attempt, and the address of rank
  /// 0.
  void form_world();
  void choose_port();
  void send_away(const std::string& reason, int exit_code);
  /// Writes how an attempt ended into the folder of the run, once per attempt.
  void record_failure(const FailureReport& report);
  void record_ending(const JobEnding& ending);
  void record(const RunExitRecord& exit);
  void end(const JobEnding& ending);
  void leave(int exit_code);

  std::unique_ptr<ControlServer> server_;
  RemoteLaunchers remotes_{loop_, reaper_, output_};
  /// The machines whose ssh is running.
  std::set<size_t> running_launchers_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<WatchChild> watch_;
  std::string run_id_;
  EventLoop::Clock::time_point begin_time_ = {};
  EventLoop::TimerId join_timer_ = 0;
  EventLoop::TimerId gather_timer_ = 0;
  bool is_sent_away_ = false;
  int world_attempt_ = -1;
  int recorded_attempt_ = -1;
  /// What the participating machines have sent about themselves, by index.
  std::vector<HelloMessage> world_;
  std::string roll_;
  bool is_roll_new_ = false;
  int port_ = 0;
};

} // namespace accelerate
