// SPDX-License-Identifier: Apache-2.0
#include "launch/member_session.h"

#include <cstring>

#include "base/str.h"

namespace accelerate {
namespace {

constexpr int kExitUsage = 2;
constexpr std::chrono::milliseconds kJoinAgain{500};

} // namespace

MemberSession::MemberSession(
    const LaunchPlan& plan,
    const SessionOptions& options)
    : LaunchSession(plan, options) {}

void MemberSession::join() {
  client_.emplace(
      loop_,
      plan_.placement.meeting_point,
      options_.token,
      introduction(),
      options_.join_limit,
      options_.patience,
      ControlClient::Callbacks{
          [this](const Message& message) { received(message); },
          [this](const std::string& why, bool was_accepted) {
            lost(why, was_accepted);
          },
          [this](const std::string& line) { say(line); }});
}

void MemberSession::join_again_soon() {
  // Not now: the caller may be a callback of this very client.
  loop_.after(kJoinAgain, [this] {
    if (!leaving_) {
      join();
    }
  });
}

void MemberSession::received(const Message& message) {
  if (const auto* start = std::get_if<StartMessage>(&message)) {
    has_started_ = true;
    rejoin_end_.reset();
    if (!start->roll.empty()) {
      say(start->roll);
    }
    StartOrder order = start->order;
    order.master_address = plan_.placement.meeting_point.address;
    start_workers(order);
  } else if (const auto* stop = std::get_if<StopMessage>(&message)) {
    stop_workers(stop->signal, stop->is_to_restart);
  } else if (const auto* over = std::get_if<EndMessage>(&message)) {
    end(over->ending);
  } else if (const auto* refused = std::get_if<RefusedMessage>(&message)) {
    this->refused(refused->reason);
  }
}

void MemberSession::refused(const std::string& reason) {
  // Machine 0 may not have missed this machine yet.
  if (rejoin_end_ && EventLoop::Clock::now() < *rejoin_end_) {
    client_->close();
    join_again_soon();
    return;
  }
  end(
      {kExitUsage,
       str_cat(
           "[launch] machine 0 refused machine ",
           plan_.placement.machine_rank,
           ": ",
           reason)});
}

void MemberSession::lost(const std::string& why, bool was_accepted) {
  if (leaving_) {
    return; // It was told, and is gone already.
  }
  if (was_accepted && has_started_ && num_rejoins_ < plan_.max_restarts) {
    ++num_rejoins_;
    rejoin_end_ = EventLoop::Clock::now() + options_.join_limit;
    say(str_cat(
        why,
        "; the workers here are ended, and this machine joins again (",
        num_rejoins_,
        " of ",
        plan_.max_restarts,
        ")"));
    constexpr bool kIsToRestart = true;
    stop_workers(SIGTERM, kIsToRestart);
    return;
  }
  leaving_ = JobEnding{1, why};
  if (was_accepted && has_started_) {
    stop_workers(SIGTERM, false);
  } else {
    end(*leaving_);
  }
}

void MemberSession::workers_failed(const FailureReport& report) {
  client_->send(FailedMessage{report});
}

void MemberSession::workers_finished() {
  client_->send(FinishedMessage{});
}

void MemberSession::workers_stopped() {
  if (leaving_) {
    end(*leaving_);
  } else if (rejoin_end_) {
    join_again_soon();
  } else {
    client_->send(StoppedMessage{});
  }
}

void MemberSession::workers_cannot_start(const std::string& reason) {
  client_->send(CannotStartMessage{reason});
}

void MemberSession::interrupted(int signal) {
  client_->send(InterruptedMessage{signal});
  leaving_ =
      JobEnding{128 + signal, str_cat("[launch] got ", strsignal(signal))};
  if (has_started_) {
    stop_workers(signal, false);
  } else {
    end(*leaving_);
  }
}

void MemberSession::end(const JobEnding& ending) {
  if (!ending.summary.empty()) {
    say_ending(ending.summary);
  }
  client_->close();
  finish(ending.exit_code);
}

} // namespace accelerate
