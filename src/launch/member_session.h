// SPDX-License-Identifier: Apache-2.0
// The launcher of a machine that is not machine 0.
#pragma once

#include <optional>

#include "launch/machines/control_client.h"
#include "launch/session.h"

namespace accelerate {

/// Joins machine 0 and does what it says. Where machine 0 is lost, ends the
/// workers and, while restarts are left, joins again.
class MemberSession : public LaunchSession {
 public:
  MemberSession(const LaunchPlan& plan, const SessionOptions& options);

 protected:
  void begin() override { join(); }
  void workers_failed(const FailureReport& report) override;
  void workers_finished() override;
  void workers_stopped() override;
  void workers_cannot_start(const std::string& reason) override;
  void interrupted(int signal) override;

 private:
  void join();
  void join_again_soon();
  void received(const Message& message);
  void refused(const std::string& reason);
  void lost(const std::string& why, bool was_accepted);
  void end(const JobEnding& ending);

  std::optional<ControlClient> client_;
  bool has_started_ = false;
  int num_rejoins_ = 0;
  /// Until when machine 0, which was lost, may take this machine in again.
  std::optional<EventLoop::Clock::time_point> rejoin_end_;
  /// Set once nobody can be asked any more: leave when the workers are gone.
  std::optional<JobEnding> leaving_;
};

} // namespace accelerate
