// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/session.h"

#include <sys/mman.h>
#include <sysexits.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "accelerate/error.h"
#include "accelerate/version.h"
#include "core/base/signal_name.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/base/words.h"
#include "launcher/launch/leader_session.h"
#include "launcher/launch/member_session.h"
#include "launcher/launch/parent_folder.h"
#include "launcher/launch/supervise/log_folder.h"
#include "launcher/launch/supervise/process_tree.h"

namespace accelerate {
namespace {

// A signal here and one from another machine within this time are the same
// signal.
constexpr std::chrono::seconds kSameSignal{2};
// The polling interval while a request to end has not been passed on.
constexpr std::chrono::milliseconds kRequestPause{10};

bool is_for_all_machines(int signal) {
  return signal == SIGUSR1 || signal == SIGUSR2;
}

} // namespace

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
          plan.grace,
          {[this](const FailureReport& report) { workers_failed(report); },
           [this] { workers_finished(); },
           [this] { workers_stopped(); }}),
      witness_(signals_, join(plan.command.command, " ")),
      merger_(
          loop_,
          [this](int signal) { return witness_.is_busy(signal); },
          [this](int signal, bool is_group_signalled) {
            signalled(
                signal,
                is_group_signalled ? GroupSignalled::kYes
                                   : GroupSignalled::kNo);
          }) {
  supervisor_.spare(witness_.pid());
  reaper_.on_end(witness_.pid(), [this](int) { witness_.forget(); });
  loop_.watch(witness_.file(), POLLIN, [this](short) { take_from_witness(); });
  loop_.watch(signals_.file(), POLLIN, [this](short) { take_signals(); });
  if (options.lifeline >= 0) {
    loop_.watch(
        options.lifeline, POLLIN, [this](short) { take_from_guardian(); });
  }
  if (options.is_remote_controlled || !options.parent_folder.empty()) {
    loop_.watch(STDIN_FILENO, POLLIN, [this](short) { parent_gone(); });
  }
}

int LaunchSession::run() {
  begin();
  loop_.run();
  return exit_code_ == 0 && output_.num_lost() > 0 ? EX_IOERR : exit_code_;
}

void LaunchSession::start_workers(const StartOrder& order) {
  try {
    if (!plan_.output.log_dir.empty()) {
      make_run_folder(plan_.output.log_dir, order.run_id);
    }
    auto workers = workers_of(plan_, order);
    num_steps_before_ = run_report().num_steps;
    if (order.first_rank == 0 && plan_.is_ranked) {
      report_file_ = UniqueFile(memfd_create("run_report", MFD_CLOEXEC));
      workers.at(0).command.variables[variables::kRunReport] =
          str_cat("/proc/", getpid(), "/fd/", report_file_.get());
    }
    supervisor_.start(workers);
    merger_.workers_began();
  } catch (const SystemError& error) {
    workers_cannot_start(error.what());
  }
}

RunReport LaunchSession::run_report() const {
  RunReport report;
  if (report_file_) {
    report = read_run_report(report_file_.get());
  }
  report.num_steps += num_steps_before_;
  return report;
}

void LaunchSession::stop_workers(const StopOrder& order) {
  const bool is_asked_here =
      first_request_ && first_request_->signal == order.signal;
  supervisor_.stop(
      order.signal,
      order.is_to_restart,
      is_asked_here ? first_request_->group : GroupSignalled::kNo,
      order.is_request ? Timing::kWhenHandled : Timing::kAtOnce);
}

void LaunchSession::take_signals() {
  while (const auto signal = signals_.next()) {
    if (signal->number == SIGCHLD) {
      collect_children();
    } else {
      merger_.add(*signal, SignalReceiver::kSupervisor);
    }
  }
}

void LaunchSession::collect_children() {
  if (!merger_.is_request_waiting()) {
    reaper_.collect();
    supervisor_.look_again();
  } else if (collect_timer_ == 0) {
    // Wait, because a worker that got the same request may end first. That is
    // not a failure.
    collect_timer_ = loop_.after(kRequestPause, [this] {
      collect_timer_ = 0;
      collect_children();
    });
  }
}

void LaunchSession::take_from_guardian() {
  Signal signal;
  const auto size = read(options_.lifeline, &signal, sizeof(signal));
  if (size == sizeof(signal)) {
    merger_.add(signal, SignalReceiver::kGuardian);
  } else if (size == 0) {
    guardian_gone();
  }
}

void LaunchSession::take_from_witness() {
  while (const auto signal = witness_.next()) {
    merger_.add(*signal, SignalReceiver::kWitness);
  }
  if (witness_.pid() == 0) {
    loop_.unwatch(witness_.file());
  }
}

void LaunchSession::signalled(int signal, GroupSignalled group) {
  if (is_request_to_end(signal)) {
    request_to_end(signal, group);
    return;
  }
  if (signal == SIGWINCH) {
    output_.resize();
  }
  if (!is_for_all_machines(signal)) {
    supervisor_.forward(signal, group);
  } else if (!was_delivered(signal, false)) {
    supervisor_.forward(signal, group);
    pass_on(signal);
  }
}

bool LaunchSession::take_passed_on(int signal) {
  if (was_delivered(signal, true)) {
    return false;
  }
  supervisor_.forward(signal, GroupSignalled::kNo);
  return true;
}

bool LaunchSession::was_delivered(int signal, bool is_passed_on) {
  const auto now = EventLoop::Clock::now();
  const auto last = deliveries_.find(signal);
  // A repetition of a signal that was sent to this machine is intentional.
  if (last != deliveries_.end() && now - last->second.time < kSameSignal &&
      (is_passed_on || last->second.was_passed_on)) {
    return true;
  }
  deliveries_[signal] = {now, is_passed_on};
  return false;
}

void LaunchSession::request_to_end(int signal, GroupSignalled group) {
  if (is_finishing_) {
    // Exit now: the output is not being read, and the user has asked again.
    say(str_cat(
        "[launch] received ",
        signal_name(signal),
        ", exiting now; some output was not read"));
    exit_code_ = exit_code_ == 0 ? 128 + signal : exit_code_;
    loop_.stop();
  } else if (!first_request_) {
    first_request_ = {signal, group};
    interrupted(signal);
  } else if (
      // When a terminal closes, both the shell and the kernel send SIGHUP. A
      // second SIGHUP is therefore not a second request.
      signal != SIGHUP && supervisor_.state() != WorkersState::kDone) {
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
  is_finishing_ = true;
  output_.finish([this] { loop_.stop(); });
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
  if (plan.placement.machine_rank == 0) {
    return LeaderSession(plan, options).run();
  }
  return MemberSession(plan, options).run();
}

} // namespace accelerate
