// SPDX-License-Identifier: Apache-2.0
#include "launch/job.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/exit_codes.h"
#include "base/str.h"

namespace accelerate {

namespace {

constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{30000};
constexpr std::chrono::seconds kLongRun{60};

} // namespace

Job::Job(
    EventLoop& loop,
    std::vector<Machine*> machines,
    int max_restarts,
    std::chrono::seconds return_limit,
    Say say)
    : loop_(loop),
      machines_(std::move(machines)),
      phases_(machines_.size(), Phase::kStopped),
      max_restarts_(max_restarts),
      return_limit_(return_limit),
      say_(std::move(say)) {}

Job::~Job() {
  loop_.cancel(restart_timer_);
  loop_.cancel(return_timer_);
}

void Job::start() {
  state_ = State::kRunning;
  attempt_start_ = EventLoop::Clock::now();
  phases_.assign(machines_.size(), Phase::kRunning);
  for (auto* machine : machines_) {
    // A machine that cannot start its workers fails the job at once.
    if (state_ == State::kRunning) {
      machine->start(attempt_);
    }
  }
}

void Job::machine_failed(size_t, const FailureReport& report) {
  if (state_ != State::kRunning) {
    return; // A consequence of the first failure.
  }
  const std::string summary = summarise(report);
  if (attempt_ < max_restarts_) {
    say_(str_cat(
        summary,
        "\n[launch] restarting all workers (restart ",
        attempt_ + 1,
        " of ",
        max_restarts_,
        ")"));
    stop_all(SIGTERM, State::kRestarting);
    return;
  }
  ending_ = {report.exit_code, summary};
  stop_all(SIGTERM, State::kStopping);
}

void Job::machine_cannot_start(size_t, const std::string& reason) {
  if (state_ == State::kRunning) {
    ending_ = {kExitUsage, reason};
    stop_all(SIGTERM, State::kStopping);
  }
}

void Job::machine_finished(size_t machine) {
  if (state_ != State::kRunning) {
    return; // Its answer to the stop order follows.
  }
  phases_[machine] = Phase::kFinished;
  const bool all_finished =
      std::all_of(phases_.begin(), phases_.end(), [](Phase phase) {
        return phase == Phase::kFinished;
      });
  if (all_finished) {
    end({});
  }
}

void Job::machine_stopped(size_t machine) {
  if (phases_[machine] == Phase::kStopping) {
    phases_[machine] = Phase::kStopped;
    go_on_when_all_stopped();
  }
}

void Job::machine_lost(
    size_t machine,
    const std::string& host,
    const std::string& why) {
  if (state_ == State::kOver || phases_[machine] == Phase::kLost) {
    return;
  }
  phases_[machine] = Phase::kLost;
  if (state_ == State::kStopping) {
    go_on_when_all_stopped();
    return;
  }
  const std::string what =
      str_cat("[launch] machine ", machine, " (", host, ") ", why);
  ending_ = {
      1,
      str_cat(
          what,
          "; all workers everywhere were ended. Look at that machine and "
          "at the network between, then launch again")};
  if (attempt_ >= max_restarts_) {
    stop_all(SIGTERM, State::kStopping);
    return;
  }
  say_(str_cat(
      what,
      "; waiting ",
      return_limit_.count(),
      " s for it to come back, then restarting all workers (restart ",
      attempt_ + 1,
      " of ",
      max_restarts_,
      ")"));
  loop_.cancel(return_timer_);
  return_timer_ = loop_.after(return_limit_, [this] {
    return_timer_ = 0;
    stop_all(SIGTERM, State::kStopping);
  });
  stop_all(SIGTERM, State::kRestarting);
}

void Job::machine_returned(size_t machine) {
  if (state_ != State::kOver && phases_[machine] == Phase::kLost) {
    phases_[machine] = Phase::kStopped;
    go_on_when_all_stopped();
  }
}

bool Job::is_waiting_for(size_t machine) const {
  return state_ == State::kRestarting && phases_[machine] == Phase::kLost;
}

void Job::interrupt(int signal, const std::string& host) {
  if (state_ == State::kOver || state_ == State::kStopping) {
    return;
  }
  ending_ = {
      128 + signal,
      str_cat(
          "[launch] ",
          host,
          " got ",
          strsignal(signal),
          ": all workers were ended")};
  stop_all(signal, State::kStopping);
}

void Job::stop_all(int signal, State next) {
  state_ = next;
  loop_.cancel(std::exchange(restart_timer_, 0));
  if (next == State::kStopping) {
    loop_.cancel(std::exchange(return_timer_, 0));
  }
  // All are marked before the first is told: one that runs nothing answers
  // within the call, and must not pass for the last.
  std::vector<Machine*> told;
  for (size_t i = 0; i < machines_.size(); ++i) {
    if (phases_[i] != Phase::kLost && phases_[i] != Phase::kStopping) {
      phases_[i] = Phase::kStopping;
      told.push_back(machines_[i]);
    }
  }
  for (Machine* machine : told) {
    machine->stop(signal, next == State::kRestarting);
  }
  if (told.empty()) {
    go_on_when_all_stopped();
  }
}

void Job::go_on_when_all_stopped() {
  if (is_any(Phase::kStopping) ||
      (state_ == State::kRestarting && is_any(Phase::kLost))) {
    return;
  }
  if (state_ == State::kRestarting) {
    start_later();
  } else if (state_ == State::kStopping) {
    end(ending_);
  }
}

bool Job::is_any(Phase phase) const {
  return std::find(phases_.begin(), phases_.end(), phase) != phases_.end();
}

void Job::start_later() {
  loop_.cancel(std::exchange(return_timer_, 0));
  const bool was_long = EventLoop::Clock::now() - attempt_start_ >= kLongRun;
  num_quick_restarts_ = was_long ? 0 : num_quick_restarts_ + 1;
  const auto pause =
      kFirstPause * (1 << std::clamp(num_quick_restarts_ - 1, 0, 20));
  restart_timer_ = loop_.after(std::min(pause, kLongestPause), [this] {
    restart_timer_ = 0;
    ++attempt_;
    start();
  });
}

void Job::end(const JobEnding& ending) {
  state_ = State::kOver;
  for (size_t i = 0; i < machines_.size(); ++i) {
    if (phases_[i] != Phase::kLost) {
      machines_[i]->end(ending);
    }
  }
}

std::string summarise(const FailureReport& report) {
  std::string text = str_cat(
      "[launch] first failure: rank ",
      report.rank,
      " on ",
      report.host,
      report.how.starts_with("signal") ? " was ended by " : " ended with ",
      report.how);
  if (!report.last_lines.empty()) {
    text += "; the last lines of its stderr:";
    for (const auto& line : report.last_lines) {
      text += "\n    " + line;
    }
  }
  return text;
}

} // namespace accelerate
