// SPDX-License-Identifier: Apache-2.0
#include "launch/session.h"

#include <cstdlib>
#include <fstream>

#include "accelerate/error.h"
#include "accelerate/version.h"
#include "base/str.h"
#include "launch/leader_session.h"
#include "launch/member_session.h"
#include "launch/parent_folder.h"
#include "launch/supervise/process_tree.h"

namespace accelerate {

LaunchSession::LaunchSession(
    const LaunchPlan& plan,
    const SessionOptions& options)
    : plan_(plan),
      options_(options),
      output_(loop_, plan.output),
      supervisor_(
          loop_,
          reaper_,
          output_,
          {[this](const FailureReport& report) { workers_failed(report); },
           [this] { workers_finished(); },
           [this] { workers_stopped(); }}) {
  loop_.watch(signals_.file(), POLLIN, [this](short) { take_signals(); });
  if (options.lifeline >= 0) {
    loop_.watch(options.lifeline, POLLIN, [this](short) { guardian_gone(); });
  }
  if (options.is_remote_controlled || !options.parent_folder.empty()) {
    loop_.watch(STDIN_FILENO, POLLIN, [this](short) { parent_gone(); });
  }
}

int LaunchSession::run() {
  begin();
  loop_.run();
  output_.finish();
  return exit_code_;
}

void LaunchSession::start_workers(const StartOrder& order) {
  try {
    supervisor_.start(workers_of(plan_, order), order.attempt);
  } catch (const SystemError& error) {
    workers_cannot_start(error.what());
  }
}

void LaunchSession::stop_workers(int signal, bool is_to_restart) {
  const bool has_terminal_told = first_request_ &&
                                 first_request_->sender == 0 &&
                                 first_request_->number == signal;
  constexpr int kNoSignal = 0;
  supervisor_.stop(has_terminal_told ? kNoSignal : signal, is_to_restart);
}

void LaunchSession::take_signals() {
  while (const auto signal = signals_.next()) {
    if (signal->number == SIGCHLD) {
      reaper_.collect();
      supervisor_.look_again();
    } else if (signal->number == SIGWINCH) {
      output_.resize();
    } else {
      request_to_end(*signal);
    }
  }
}

void LaunchSession::request_to_end(const SignalFileGuard::Signal& signal) {
  if (!first_request_) {
    first_request_ = signal;
    interrupted(signal.number);
  } else if (signal.sender == first_request_->sender) {
    // Asked twice in the same way: no more patience. A signal to the whole
    // process group arrives twice too, once through the guardian.
    supervisor_.stop(SIGKILL);
  }
}

void LaunchSession::guardian_gone() {
  constexpr int kLimitMs = 4000;
  kill_all_descendants(kLimitMs);
  std::_Exit(128 + SIGKILL);
}

void LaunchSession::parent_gone() {
  if (!options_.parent_folder.empty()) {
    remove_parent_folder(options_.parent_folder);
  }
  guardian_gone();
}

void LaunchSession::finish(int exit_code) {
  exit_code_ = exit_code;
  loop_.stop();
}

void LaunchSession::say(const std::string& line) {
  if (!plan_.is_quiet && !options_.is_remote_controlled) {
    output_.say(line);
  }
}

void LaunchSession::say_ending(const std::string& summary) {
  if (options_.parent_folder.empty()) {
    say(summary);
  } else {
    std::ofstream(options_.parent_folder / "ending") << summary << '\n';
  }
}

HelloMessage LaunchSession::introduction() const {
  return {
      .version = ACCELERATE_VERSION,
      .machine_rank = plan_.placement.machine_rank,
      .host = host_name(),
      .num_local = plan_.num_local,
      .devices = plan_.devices,
      .problems = options_.problems,
      .agreement = plan_.agreement};
}

int run_session(const LaunchPlan& plan, const SessionOptions& options) {
  if (plan.placement.machine_rank > 0) {
    return MemberSession(plan, options).run();
  }
  return LeaderSession(plan, options).run();
}

} // namespace accelerate
