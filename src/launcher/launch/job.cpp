// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/job.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/base/exit_codes.h"
#include "core/base/printable.h"
#include "core/base/signal_name.h"
#include "core/base/str.h"
#include "core/base/words.h"
#include "launcher/launch/supervise/error_report.h"

namespace accelerate {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{30000};
constexpr std::chrono::seconds kLongRun{60};

std::string one_decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

} // namespace

Job::Job(
    EventLoop& loop,
    std::vector<Machine*> machines,
    const JobOptions& options,
    Say say)
    : loop_(loop),
      machines_(std::move(machines)),
      phases_(machines_.size(), Phase::kStopped),
      options_(options),
      say_(std::move(say)) {}

Job::~Job() {
  loop_.cancel(restart_timer_);
  loop_.cancel(return_timer_);
}

void Job::start(const std::vector<size_t>& absent) {
  for (const size_t machine : absent) {
    phases_[machine] = Phase::kLost;
  }
  start_attempt();
}

void Job::start_attempt() {
  state_ = State::kRunning;
  is_counted_ = false;
  is_failure_ = false;
  is_asking_ = false;
  exit_summary_ = {};
  attempt_start_ = EventLoop::Clock::now();
  std::vector<Machine*> members;
  for (size_t i = 0; i < machines_.size(); ++i) {
    if (phases_[i] != Phase::kLost) {
      phases_[i] = Phase::kRunning;
      members.push_back(machines_[i]);
    }
  }
  for (Machine* machine : members) {
    // A machine that cannot start its workers fails the job at once.
    if (state_ == State::kRunning) {
      machine->start(attempt_);
    }
  }
}

bool Job::count_restart() {
  if (!is_counted_ && num_restarts_ < options_.max_restarts) {
    is_counted_ = true;
    ++num_restarts_;
  }
  return is_counted_;
}

void Job::machine_failed(size_t, const FailureReport& report) {
  if (state_ != State::kRunning) {
    return; // a consequence of the first failure
  }
  if (report.exit_code == kExitPreempted) {
    say_(str_cat(
        "[launch] Rank ",
        report.rank,
        machines_.size() > 1 ? " on " + report.host : std::string(),
        " requested a restart (exit code ",
        kExitPreempted,
        "); restarting all processes. This does not count towards "
        "--max_restarts"));
    stop_all(SIGUSR1, State::kRestarting);
    return;
  }
  const std::string summary = summarise(report, machines_.size() > 1);
  is_failure_ = true;
  if (count_restart()) {
    say_(str_cat(
        summary,
        "\n[launch] Restarting all processes (restart ",
        num_restarts_,
        " of ",
        options_.max_restarts,
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
    return; // its answer to the stop order follows
  }
  phases_[machine] = Phase::kFinished;
  if (!is_any(Phase::kRunning)) {
    end({});
  }
}

void Job::machine_stopped(size_t machine, const ExitSummary& exit_summary) {
  Phase& phase = phases_[machine];
  if (phase != Phase::kStopping && phase != Phase::kLeaving) {
    return;
  }
  phase = phase == Phase::kLeaving ? Phase::kLost : Phase::kStopped;
  exit_summary_.is_any_preempted |= exit_summary.is_any_preempted;
  exit_summary_.is_orderly &= exit_summary.is_orderly;
  end_or_restart_when_all_stopped();
}

void Job::machine_lost(
    size_t machine,
    const std::string& host,
    const std::string& why) {
  if (state_ == State::kOver || !is_here(machine)) {
    return;
  }
  const Phase phase = std::exchange(phases_[machine], Phase::kLost);
  exit_summary_.is_orderly &= phase == Phase::kStopped;
  const bool is_cause =
      is_elastic() && is_failure_ && phase == Phase::kStopping;
  if (is_cause) {
    is_failure_ = false;
    num_restarts_ -= std::exchange(is_counted_, false) ? 1 : 0;
    state_ = State::kRestarting;
  }
  if (state_ == State::kStopping || phase == Phase::kLeaving) {
    end_or_restart_when_all_stopped();
    return;
  }
  const std::string what =
      str_cat("[launch] machine ", machine, " (", host, ") ", why);
  if (is_elastic()) {
    drop_machine(machine, what);
    return;
  }
  ending_ = {
      kExitFailure,
      str_cat(
          what,
          "; stopped all processes. Check this machine and the network, then "
          "launch again")};
  if (!count_restart()) {
    stop_all(SIGTERM, State::kStopping);
    return;
  }
  say_(str_cat(
      what,
      "; waiting ",
      options_.return_limit.count(),
      " s for it to return before restarting all processes (restart ",
      num_restarts_,
      " of ",
      options_.max_restarts,
      ")"));
  loop_.cancel(return_timer_);
  return_timer_ = loop_.after(options_.return_limit, [this] {
    return_timer_ = 0;
    stop_all(SIGTERM, State::kStopping);
  });
  stop_all(SIGTERM, State::kRestarting);
}

void Job::drop_machine(size_t machine, const std::string& what) {
  const int left = num_here() - (is_here(machine) ? 1 : 0);
  const int least = *options_.least_machines;
  if (left >= least) {
    say_(str_cat(
        what,
        "; restarting all processes on ",
        left,
        left == 1 ? " machine" : " machines"));
  } else {
    say_(str_cat(
        what,
        "; at least ",
        least,
        " machines are needed, but only ",
        left,
        left == 1 ? " is left" : " are left"));
  }
  if (state_ == State::kRunning) {
    stop_all(SIGTERM, State::kRestarting);
  } else {
    end_or_restart_when_all_stopped();
  }
}

void Job::machine_joined(size_t machine, const std::string& host) {
  if (state_ == State::kOver || is_here(machine)) {
    return;
  }
  phases_[machine] = Phase::kStopped;
  // If one machine has finished, the others soon will. The new one then waits.
  if (state_ != State::kRunning || is_any(Phase::kFinished)) {
    end_or_restart_when_all_stopped();
    return;
  }
  say_(str_cat(
      "[launch] machine ",
      machine,
      " (",
      host,
      ") has joined; restarting all processes on ",
      num_here(),
      " machines as soon as the running processes have saved"));
  stop_all(SIGUSR1, State::kRestarting);
}

void Job::machine_leaves(size_t machine, const std::string& host, int signal) {
  if (state_ == State::kOver || state_ == State::kStopping ||
      !is_here(machine)) {
    return; // its connection ends next
  }
  Phase& phase = phases_[machine];
  phase = phase == Phase::kStopped ? Phase::kLost : Phase::kLeaving;
  drop_machine(
      machine,
      str_cat(
          "[launch] machine ",
          machine,
          " (",
          host,
          ") received ",
          signal_name(signal),
          " and is leaving"));
}

bool Job::is_waiting_for(size_t machine) const {
  return state_ == State::kRestarting && !is_here(machine);
}

void Job::interrupt(int signal, const std::string& host, int num_processes) {
  if (state_ == State::kOver || state_ == State::kStopping) {
    return;
  }
  is_failure_ = false;
  is_preempted_ = signal == SIGTERM;
  ending_ = {
      128 + signal,
      str_cat(
          describe_interrupt(signal, machines_.size() > 1 ? host : ""),
          "; stopped ",
          num_processes,
          num_processes == 1 ? " process." : " processes.")};
  stop_all(signal, State::kStopping, true);
}

void Job::stop_all(int signal, State next, bool is_request) {
  state_ = next;
  // Machines that were only asked to leave get another order when the job ends.
  const bool is_urgent = is_asking_ && next == State::kStopping;
  is_asking_ = !is_urgent && (is_asking_ || signal == SIGUSR1);
  loop_.cancel(std::exchange(restart_timer_, 0));
  if (next == State::kStopping) {
    loop_.cancel(std::exchange(return_timer_, 0));
  }
  // Mark all machines before sending to the first one. A machine without
  // workers answers within the call, and must not be considered the last one.
  std::vector<Machine*> notified;
  for (size_t i = 0; i < machines_.size(); ++i) {
    const bool is_notified = phases_[i] == Phase::kLost ||
                             phases_[i] == Phase::kLeaving ||
                             (phases_[i] == Phase::kStopping && !is_urgent);
    if (!is_notified) {
      phases_[i] = Phase::kStopping;
      notified.push_back(machines_[i]);
    }
  }
  for (Machine* machine : notified) {
    machine->stop({signal, next == State::kRestarting, is_request});
  }
  if (notified.empty()) {
    end_or_restart_when_all_stopped();
  }
}

void Job::end_or_restart_when_all_stopped() {
  if (is_any(Phase::kStopping) || is_any(Phase::kLeaving)) {
    return;
  }
  if (state_ == State::kStopping) {
    if (is_preempted_ && exit_summary_.is_preempted()) {
      ending_ = {
          kExitPreempted,
          str_cat(
              ending_.summary,
              " Exit code ",
              kExitPreempted,
              ": to resume the job, launch it again.")};
    }
    end(ending_);
  } else if (state_ == State::kRestarting) {
    const int wanted =
        options_.least_machines.value_or(static_cast<int>(machines_.size()));
    if (num_here() >= wanted) {
      start_later();
    } else if (is_elastic()) {
      wait_for_machines();
    }
  }
}

void Job::wait_for_machines() {
  loop_.cancel(std::exchange(restart_timer_, 0));
  if (return_timer_ != 0) {
    return;
  }
  const std::string limit = str_cat(options_.return_limit.count(), " s");
  say_(str_cat(
      "[launch] waiting up to ",
      limit,
      " for machines: ",
      num_here(),
      " of at least ",
      *options_.least_machines,
      " have joined"));
  return_timer_ = loop_.after(options_.return_limit, [this, limit] {
    return_timer_ = 0;
    ending_ = {
        kExitFailure,
        str_cat(
            "[launch] no machine joined within ",
            limit,
            ": ",
            num_here(),
            " of at least ",
            *options_.least_machines,
            " have joined. Check the other machines, then launch again")};
    stop_all(SIGTERM, State::kStopping);
  });
}

bool Job::is_any(Phase phase) const {
  return std::find(phases_.begin(), phases_.end(), phase) != phases_.end();
}

int Job::num_here() const {
  return static_cast<int>(
      std::count_if(phases_.begin(), phases_.end(), [](Phase phase) {
        return phase != Phase::kLost;
      }));
}

void Job::start_later() {
  loop_.cancel(std::exchange(return_timer_, 0));
  if (restart_timer_ != 0) {
    return;
  }
  const bool was_long = EventLoop::Clock::now() - attempt_start_ >= kLongRun;
  num_quick_restarts_ = was_long ? 0 : num_quick_restarts_ + 1;
  const auto pause =
      kFirstPause * (1 << std::clamp(num_quick_restarts_ - 1, 0, 20));
  restart_timer_ = loop_.after(std::min(pause, kLongestPause), [this] {
    restart_timer_ = 0;
    ++attempt_;
    start_attempt();
  });
}

void Job::end(const JobEnding& ending) {
  state_ = State::kOver;
  for (size_t i = 0; i < machines_.size(); ++i) {
    if (is_here(i)) {
      machines_[i]->end(ending);
    }
  }
}

namespace {

std::string describe_duration(std::chrono::duration<double> duration) {
  const auto seconds = static_cast<int64_t>(duration.count());
  if (duration.count() < 9.95) {
    return str_cat(one_decimal(duration.count()), " s");
  }
  if (seconds < 60) {
    return str_cat(seconds, " s");
  }
  if (seconds < 3600) {
    return str_cat(seconds / 60, " min ", seconds % 60, " s");
  }
  return str_cat(seconds / 3600, " h ", seconds / 60 % 60, " min");
}

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (auto position = static_cast<ptrdiff_t>(text.size()) - 3; position > 0;
       position -= 3) {
    text.insert(static_cast<size_t>(position), ",");
  }
  return text;
}

std::string path_from(const fs::path& folder, const std::string& path) {
  const auto nearer = fs::path(path).lexically_proximate(folder);
  return printable(
      nearer.empty() || *nearer.begin() == ".." ? path : nearer.string());
}

} // namespace

std::string describe_run(
    const RunReport& report,
    std::chrono::duration<double> duration,
    const fs::path& folder) {
  std::vector<std::string> facts;
  if (report.num_steps > 0) {
    const double speed =
        static_cast<double>(report.num_steps) / duration.count();
    facts.push_back(str_cat(
        with_commas(report.num_steps),
        report.num_steps == 1 ? " step" : " steps",
        " (",
        one_decimal(speed),
        " steps/s)"));
  }
  if (!report.checkpoint.empty()) {
    facts.push_back("last checkpoint " + path_from(folder, report.checkpoint));
  }
  if (!report.folder.empty()) {
    facts.push_back("logs in " + path_from(folder, report.folder));
  }
  return facts.empty() ? std::string()
                       : str_cat(
                             "[launch] Finished in ",
                             describe_duration(duration),
                             ": ",
                             join(facts, ", "));
}

std::string describe_interrupt(int signal, const std::string& host) {
  const std::string where = host.empty() ? "" : " on " + host;
  if (signal == SIGINT) {
    return str_cat("[launch] Interrupted", where);
  }
  return str_cat("[launch] Received ", signal_name(signal), where);
}

std::string summarise(const FailureReport& report, bool names_host) {
  std::string text = str_cat("[launch] Rank ", report.rank);
  if (names_host) {
    text += " on " + report.host;
  }
  text += ' ' + report.how;
  if (report.is_shown || report.last_lines.empty()) {
    return text;
  }
  const bool is_report = find_error_report(report.last_lines[0]) == 0;
  text += is_report ? ":" : "; the last lines of its stderr:";
  for (const auto& line : report.last_lines) {
    text += (is_report ? "\n" : "\n    ") + line;
  }
  return text;
}

} // namespace accelerate
