// SPDX-License-Identifier: Apache-2.0
// The launcher of a machine other than machine 0.
#pragma once

#include <optional>

#include "launcher/launch/machines/control_client.h"
#include "launcher/launch/session.h"

namespace accelerate {

/// Joins machine 0 and carries out its orders.
class MemberSession : public LaunchSession {
 public:
  MemberSession(const LaunchPlan& plan, const SessionOptions& options);

 protected:
  void begin() override {}
  void workers_failed(const FailureReport& report) override;
  void workers_finished() override;
  void workers_stopped() override;
  void workers_cannot_start(const std::string& reason) override;
  void interrupted(int signal) override;
  void pass_on(int signal) override;

 private:
  void received(const Message& message);
  void lost(const std::string& why, bool was_accepted);
  bool may_join_again() const;
  void end(const JobEnding& ending);

  ControlClient client_;
  bool has_started_ = false;
  /// Whether machine 0 was lost. This machine rejoins when its workers have
  /// ended.
  bool is_cut_off_ = false;
  /// Whether this machine is rejoining, until machine 0 starts the job again.
  bool is_joining_again_ = false;
  /// The signal that asked this launcher to end. 0 if there was none.
  int leaving_signal_ = 0;
  /// Set if machine 0 is lost for good. The launcher exits when the workers
  /// have ended.
  std::optional<JobEnding> leaving_;
};

} // namespace accelerate
