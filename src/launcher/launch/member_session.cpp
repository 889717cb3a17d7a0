// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/member_session.h"

#include <cstring>
#include <utility>

#include "core/base/exit_codes.h"
#include "core/base/str.h"

namespace accelerate {

MemberSession::MemberSession(
    const LaunchPlan& plan,
    const SessionOptions& options)
    : LaunchSession(plan, options),
      client_(
          loop_,
          plan.placement.rendezvous,
          options.token,
          introduction(),
          options.join_limit,
          options.patience,
          {[this](const Message& message) { received(message); },
           [this](const std::string& why, bool was_accepted) {
             lost(why, was_accepted);
           },
           [this](const std::string& line) { say(line); }}) {}

void MemberSession::received(const Message& message) {
  if (const auto* start = std::get_if<StartMessage>(&message)) {
    has_started_ = true;
    is_joining_again_ = false;
    if (!start->roll.empty()) {
      say(start->roll);
    }
    StartOrder order = start->order;
    order.master_address = plan_.placement.rendezvous.address;
    start_workers(order);
  } else if (const auto* stop = std::get_if<StopMessage>(&message)) {
    // A machine that leaves by itself has already stopped its workers.
    if (!leaving_) {
      stop_workers(stop->order);
    }
  } else if (const auto* signal = std::get_if<SignalMessage>(&message)) {
    take_passed_on(signal->signal);
  } else if (const auto* over = std::get_if<EndMessage>(&message)) {
    end(over->ending);
  } else if (const auto* refused = std::get_if<RefusedMessage>(&message)) {
    if (is_joining_again_) {
      client_.ask_again("it rejects this machine: " + refused->reason);
      return;
    }
    end(
        {kExitUsage,
         str_cat(
             "[launch] machine 0 rejected ",
             plan_.placement.machine_rank == kAnyMachine
                 ? "this machine"
                 : str_cat("machine ", plan_.placement.machine_rank),
             ": ",
             refused->reason)});
  }
}

void MemberSession::lost(const std::string& why, bool was_accepted) {
  if (leaving_) {
    return; // it already got the order and has ended
  }
  if (was_accepted && may_join_again()) {
    say(why + "; stopping the processes on this machine and rejoining");
    is_cut_off_ = true;
    is_joining_again_ = true;
    stop_workers({SIGTERM, true});
    return;
  }
  leaving_ = JobEnding{1, why};
  if (was_accepted && has_started_) {
    stop_workers({SIGTERM});
  } else {
    end(*leaving_);
  }
}

bool MemberSession::may_join_again() const {
  return plan_.placement.least_machines ||
         (has_started_ && plan_.max_restarts > 0 &&
          !options_.is_remote_controlled);
}

void MemberSession::workers_failed(const FailureReport& report) {
  client_.send(FailedMessage{report});
}

void MemberSession::workers_finished() {
  client_.send(FinishedMessage{});
}

void MemberSession::workers_stopped() {
  const ExitSummary exit_summary = supervisor_.exit_summary();
  if (leaving_) {
    client_.send(StoppedMessage{exit_summary});
    if (leaving_signal_ == SIGTERM && exit_summary.is_preempted()) {
      leaving_->exit_code = kExitPreempted;
    }
    end(*leaving_);
  } else if (std::exchange(is_cut_off_, false)) {
    // In an elastic job, machine 0 stops listening when the job has ended.
    client_.join_again(plan_.placement.least_machines.has_value());
  } else {
    client_.send(StoppedMessage{exit_summary});
  }
}

void MemberSession::workers_cannot_start(const std::string& reason) {
  client_.send(CannotStartMessage{reason});
}

void MemberSession::interrupted(int signal) {
  client_.send(InterruptedMessage{signal});
  leaving_signal_ = signal;
  leaving_ = JobEnding{128 + signal, describe_interrupt(signal, "") + '.'};
  if (has_started_) {
    stop_workers({.signal = signal, .is_request = true});
  } else {
    end(*leaving_);
  }
}

void MemberSession::pass_on(int signal) {
  client_.send(SignalMessage{signal});
}

void MemberSession::end(const JobEnding& ending) {
  if (!ending.summary.empty()) {
    say_ending(ending.summary);
  }
  client_.close();
  finish(ending.exit_code);
}

} // namespace accelerate
