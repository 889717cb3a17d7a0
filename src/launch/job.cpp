// SPDX-License-Identifier: Apache-2.0
#include "launch/job.h"

#include <signal.h>

#include <algorithm>
#include <cstring>

#include "base/str.h"

namespace accelerate {

Job::Job(std::vector<Machine*> machines, int max_restarts, Say say)
    : machines_(std::move(machines)),
      phases_(machines_.size(), Phase::kStopped),
      max_restarts_(max_restarts),
      say_(std::move(say)) {}

void Job::start() {
  state_ = State::kRunning;
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
    constexpr int kExitUsage = 2;
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
  if (state_ == State::kStopping) {
    phases_[machine] = Phase::kLost;
    go_on_when_all_stopped();
    return;
  }
  const std::string what =
      str_cat("[launch] machine ", machine, " (", host, ") ", why);
  if (attempt_ < max_restarts_) {
    phases_[machine] = Phase::kAway;
    say_(str_cat(
        what,
        "; all workers are ended, and start again when it is back (restart ",
        attempt_ + 1,
        " of ",
        max_restarts_,
        ")"));
    stop_all(SIGTERM, State::kRestarting);
    return;
  }
  phases_[machine] = Phase::kLost;
  ending_ = {
      1,
      str_cat(
          what,
          "; all workers everywhere were ended. Look at that machine and at "
          "the network between, then launch again")};
  stop_all(SIGTERM, State::kStopping);
}

bool Job::awaits_any() const {
  return std::find(phases_.begin(), phases_.end(), Phase::kAway) !=
         phases_.end();
}

void Job::machine_returned(size_t machine) {
  if (phases_[machine] == Phase::kAway) {
    phases_[machine] = Phase::kStopped;
    go_on_when_all_stopped();
  }
}

void Job::give_up_waiting(const std::string& why) {
  if (state_ == State::kRestarting && awaits_any()) {
    ending_ = {1, why};
    stop_all(SIGTERM, State::kStopping);
  }
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
  for (size_t i = 0; i < machines_.size(); ++i) {
    if (phases_[i] != Phase::kLost && phases_[i] != Phase::kAway &&
        phases_[i] != Phase::kStopping) {
      phases_[i] = Phase::kStopping;
      machines_[i]->stop(signal, next == State::kRestarting);
    }
  }
  go_on_when_all_stopped();
}

void Job::go_on_when_all_stopped() {
  const bool is_waiting =
      std::any_of(phases_.begin(), phases_.end(), [](Phase phase) {
        return phase == Phase::kStopping;
      });
  if (is_waiting || (state_ == State::kRestarting && awaits_any())) {
    return;
  }
  if (state_ == State::kRestarting) {
    ++attempt_;
    start();
  } else if (state_ == State::kStopping) {
    end(ending_);
  }
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
