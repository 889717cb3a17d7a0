// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/base/exit_codes.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "launcher/launch/supervise/error_file.h"
#include "launcher/launch/supervise/error_report.h"
#include "launcher/launch/supervise/process_tree.h"

namespace accelerate {
namespace {

// The grace period of processes that workers leave behind, which have nothing
// to save.
constexpr std::chrono::milliseconds kSweepGrace{3000};
// How long after SIGKILL processes are abandoned.
constexpr std::chrono::milliseconds kKillLimit{5000};
// The interval of checks whether a signal handler is installed.
constexpr std::chrono::milliseconds kHandlerPause{200};
// How long to wait for the end of a worker that others report as gone.
constexpr std::chrono::milliseconds kSuspectTime{2000};

std::filesystem::path error_file_of(const WorkerSpec& worker) {
  const auto found = worker.command.variables.find(variables::kErrorFile);
  return found == worker.command.variables.end() ? "" : found->second;
}

// Replaces a signal that the process cannot use: without a handler for SIGQUIT
// or SIGUSR1 it would just die, and the kernel discards SIGTSTP for orphaned
// process groups.
int suitable_for(pid_t pid, int signal) {
  const int instead = signal == SIGQUIT   ? SIGABRT
                      : signal == SIGUSR1 ? SIGTERM
                      : signal == SIGTSTP ? SIGSTOP
                                          : signal;
  return instead == signal || has_signal_flag(pid, "SigCgt", signal) ? signal
                                                                     : instead;
}

/// The Python package of the build that this program belongs to.
std::string own_package() {
  const auto self = own_program();
  return self.empty()
             ? std::string()
             : (self.parent_path().parent_path() / "python/accelerate/")
                   .string();
}

/// Keeps the beginning and the end of a long report.
std::vector<std::string> shortened(std::vector<std::string> lines) {
  constexpr ptrdiff_t kFirst = 20;
  constexpr ptrdiff_t kMost = 100;
  const auto size = static_cast<ptrdiff_t>(lines.size());
  if (size > kMost) {
    lines[kFirst] = str_cat("  ... ", size - kMost + 1, " lines left out");
    lines.erase(
        lines.begin() + kFirst + 1, lines.begin() + size - kMost + kFirst + 1);
  }
  return lines;
}

bool is_in_our_group(pid_t pid) {
  return getpgid(pid) == getpgrp();
}

bool ends_nothing(int signal) {
  return signal == SIGUSR1 || signal == SIGUSR2;
}

// A blocked signal counts as handled, because it stays pending until the
// process takes it.
bool is_handled_by(pid_t pid, int signal) {
  return has_signal_flag(pid, "SigCgt", signal) ||
         has_signal_flag(pid, "SigIgn", signal) ||
         has_signal_flag(pid, "SigBlk", signal);
}

/// The receivers of a signal: the worker and, for a signal that ends processes,
/// all processes below it.
std::vector<pid_t> receivers_of(int signal, pid_t worker) {
  std::vector<pid_t> found = {worker};
  if (!ends_nothing(signal)) {
    const auto below = descendants_of(worker);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

bool can_take(pid_t worker, int signal) {
  if (is_handled_by(worker, signal)) {
    return true;
  }
  const auto receivers = receivers_of(signal, worker);
  return std::any_of(receivers.begin(), receivers.end(), [&](pid_t pid) {
    return is_handled_by(pid, signal);
  });
}

} // namespace

Supervisor::Supervisor(
    EventLoop& loop,
    ChildReaper& reaper,
    OutputRouter& output,
    std::chrono::seconds grace,
    Callbacks callbacks)
    : loop_(loop),
      reaper_(reaper),
      output_(output),
      grace_(grace),
      callbacks_(std::move(callbacks)) {}

void Supervisor::start(const std::vector<WorkerSpec>& workers) {
  state_ = WorkersState::kStarting;
  workers_.clear();
  taken_.clear();
  reported_error_.clear();
  oom_kills_.emplace();
  is_killing_ = false;
  is_sweeping_ = false;
  try {
    for (const auto& worker : workers) {
      const size_t index = workers_.size();
      const auto streams =
          output_.open(worker.rank, static_cast<int>(index), worker.log_folder);
      ChildCommand command = worker.command;
      if (index > 0 && workers_.front().rank == 0) {
        command.variables[variables::kMainPid] =
            std::to_string(workers_.front().pid);
      }
      const pid_t pid = start_child(command, streams);
      workers_.push_back({pid, worker.rank, {}, error_file_of(worker)});
      reaper_.on_end(
          pid, [this, index](int status) { worker_ended(index, status); });
    }
  } catch (...) {
    kill_what_was_started();
    state_ = WorkersState::kDone;
    throw;
  }
  state_ = WorkersState::kRunning;
  for (const int signal : std::exchange(kept_, {})) {
    forward(signal, GroupSignalled::kNo);
  }
}

void Supervisor::kill_what_was_started() {
  // Close these streams first, because open files may be the resource that has
  // run out.
  output_.close_workers();
  const auto end = EventLoop::Clock::now() + kKillLimit;
  while (EventLoop::Clock::now() < end &&
         !descendants_of(getpid(), spared_).empty()) {
    signal_everything(SIGKILL);
    poll(nullptr, 0, 1);
    reaper_.collect();
  }
  for (const auto& worker : std::exchange(workers_, {})) {
    reaper_.forget(worker.pid);
  }
}

void Supervisor::worker_ended(size_t index, int wait_status) {
  Worker& worker = workers_[index];
  worker.wait_status = wait_status;
  if (is_stopping() && hold_timer_ != 0 && wait_status != 0 &&
      exit_code_of(wait_status) != kExitPreempted) {
    // The other workers cannot continue training.
    stop(SIGTERM, state_ == WorkersState::kRestarting);
    return;
  }
  if (state_ != WorkersState::kRunning) {
    return;
  }
  if (wait_status != 0) {
    const StderrTail tail = output_.stderr_tail(worker.rank);
    const bool may_be_cause = !tail.is_report || !is_consequence(tail.lines) ||
                              exit_code_of(wait_status) == kExitPreempted;
    if (may_be_cause) {
      report_failure(index);
      return;
    }
    if (!suspect_) {
      suspect_ = index;
      suspect_timer_ = loop_.after(kSuspectTime, [this] {
        suspect_timer_ = 0;
        report_failure(*suspect_);
      });
    }
  }
  if (suspect_ && !any_running()) {
    report_failure(*suspect_);
  }
}

void Supervisor::report_failure(size_t index) {
  loop_.cancel(std::exchange(suspect_timer_, 0));
  suspect_.reset();
  state_ = WorkersState::kFailed;
  callbacks_.failed(describe_failure(workers_[index]));
}

FailureReport Supervisor::describe_failure(const Worker& worker) {
  StderrTail tail = output_.stderr_tail(worker.rank);
  std::string how = describe_end(*worker.wait_status);
  if (exit_code_of(*worker.wait_status) == 128 + SIGKILL &&
      oom_kills_->may_have_killed(worker.pid)) {
    how += " because memory ran out. Use a smaller batch or fewer processes";
  }
  how += describe_finished_ranks();
  const std::string message = read_error_file(worker.error_file);
  if (!message.empty() && !tail.is_report) {
    how += "; its error file says: " + message;
  }
  if (tail.is_report) {
    reported_error_ = final_error(tail.lines);
    if (tail.is_shown) {
      how += str_cat(" (see above): ", reported_error_);
    } else if (!output_.shows_all_errors()) {
      tail.lines = fold_library_frames(tail.lines, own_package());
    }
    output_.drop_held(worker.rank);
  }
  return {
      .rank = worker.rank,
      .host = host_name(),
      .exit_code = exit_code_of(*worker.wait_status),
      .how = how,
      .last_lines = shortened(std::move(tail.lines)),
      .is_shown = tail.is_shown};
}

// Reports that repeat the same error, or only say that another rank is gone,
// are not worth showing.
void Supervisor::drop_consequences() {
  for (const Worker& worker : workers_) {
    if (worker.wait_status.value_or(0) == 0) {
      continue;
    }
    const StderrTail tail = output_.stderr_tail(worker.rank);
    const bool is_repeated =
        !reported_error_.empty() && final_error(tail.lines) == reported_error_;
    if (tail.is_report && (is_consequence(tail.lines) ||
                           is_interrupt(tail.lines) || is_repeated)) {
      output_.drop_held(worker.rank);
    }
  }
}

// A rank that returned early often causes the others' failure.
std::string Supervisor::describe_finished_ranks() const {
  constexpr int kMostNamed = 8;
  std::string text;
  int named = 0;
  for (const auto& worker : workers_) {
    if (worker.wait_status == 0 && named++ < kMostNamed) {
      text += str_cat("; rank ", worker.rank, " had already finished");
    }
  }
  return text;
}

void Supervisor::stop(
    int signal,
    bool is_to_restart,
    GroupSignalled group,
    Timing timing) {
  state_ = is_to_restart ? WorkersState::kRestarting : WorkersState::kStopping;
  loop_.cancel(std::exchange(suspect_timer_, 0));
  suspect_.reset();
  output_.hold_reports();
  keep_for_next_start();
  forget_held();
  if (signal == SIGKILL) {
    kill_everything();
  } else if (signal == SIGUSR1) {
    ask_to_leave();
  } else if (!is_killing_) {
    loop_.cancel(std::exchange(ask_timer_, 0));
    if (timing == Timing::kWhenHandled && group == GroupSignalled::kNo &&
        signal == SIGTERM) {
      std::string ranks;
      for (Worker& worker : workers_) {
        if (!worker.wait_status && !can_take(worker.pid, signal)) {
          hold(worker, signal);
          ranks += str_cat(ranks.empty() ? "" : ", ", worker.rank);
        }
      }
      if (!ranks.empty()) {
        output_.say(str_cat(
            "[launch] waiting up to ",
            std::chrono::duration<double>(grace_).count() / 2,
            " s for workers to install a SIGTERM handler (ranks: ",
            ranks,
            "). Send SIGTERM again to stop the job immediately"));
      }
    }
    signal_everything(signal, group);
    // Suspended processes must end, too.
    signal_everything(SIGCONT);
    if (kill_timer_ == 0) {
      kill_after(grace_);
    }
  }
  look_again();
}

void Supervisor::ask_to_leave() {
  if (is_killing_ || kill_timer_ != 0 || ask_timer_ != 0) {
    return; // they already got it
  }
  for (const Worker& worker : workers_) {
    if (!worker.wait_status) {
      kill(worker.pid, suitable_for(worker.pid, SIGUSR1));
    }
  }
  // A suspended process cannot leave.
  signal_everything(SIGCONT);
  ask_timer_ = loop_.after(grace_, [this] {
    ask_timer_ = 0;
    stop(SIGTERM, state_ == WorkersState::kRestarting);
  });
}

void Supervisor::hold(Worker& worker, int signal) {
  worker.held.try_emplace(signal, EventLoop::Clock::now() + grace_ / 2);
  if (hold_timer_ == 0) {
    hold_timer_ = loop_.after(kHandlerPause, [this] {
      hold_timer_ = 0;
      deliver_held();
    });
  }
}

void Supervisor::deliver_held() {
  const auto now = EventLoop::Clock::now();
  std::map<int, std::string> dropped;
  for (Worker& worker : workers_) {
    for (const auto& [signal, end] : std::exchange(worker.held, {})) {
      if (worker.wait_status) {
        continue;
      }
      const bool is_ready = can_take(worker.pid, signal);
      if (!is_ready && now < end) {
        hold(worker, signal);
        worker.held[signal] = end;
      } else if (is_ready || !ends_nothing(signal)) {
        deliver(worker, signal);
      } else {
        std::string& ranks = dropped[signal];
        ranks += str_cat(ranks.empty() ? "" : ", ", worker.rank);
      }
    }
  }
  for (const auto& [signal, ranks] : dropped) {
    output_.say(str_cat(
        "[launch] dropped ",
        signal == SIGUSR1 ? "SIGUSR1" : "SIGUSR2",
        " (ranks: ",
        ranks,
        "), because it was not handled within ",
        std::chrono::duration<double>(grace_).count() / 2,
        " s. Call should_stop() in the training loop, or install a handler"));
  }
}

void Supervisor::deliver(const Worker& worker, int signal) {
  for (const pid_t pid : receivers_of(signal, worker.pid)) {
    kill(pid, signal);
  }
  taken_.insert(signal);
}

void Supervisor::forget_held() {
  loop_.cancel(std::exchange(hold_timer_, 0));
  for (Worker& worker : workers_) {
    worker.held.clear();
  }
}

// Keeps pending signals that no worker has taken for the next start. Workers
// without a handler have not begun to train, so the signals are not for them.
void Supervisor::keep_for_next_start() {
  if (state_ != WorkersState::kRestarting) {
    return;
  }
  for (const Worker& worker : workers_) {
    for (const auto& [signal, end] : worker.held) {
      if (ends_nothing(signal) && !taken_.contains(signal)) {
        kept_.insert(signal);
      }
    }
  }
}

ExitSummary Supervisor::exit_summary() const {
  ExitSummary exit_summary;
  for (const Worker& worker : workers_) {
    if (worker.wait_status) {
      const int code = exit_code_of(*worker.wait_status);
      exit_summary.is_any_preempted |= code == kExitPreempted;
      exit_summary.is_orderly &= code == kExitPreempted || code == 0;
    }
  }
  return exit_summary;
}

void Supervisor::kill_after(std::chrono::milliseconds grace) {
  loop_.cancel(kill_timer_);
  kill_timer_ = loop_.after(grace, [this, grace] {
    kill_timer_ = 0;
    if (is_stopping() && !is_sweeping_) {
      output_.say(str_cat(
          "[launch] killing processes that are still running after ",
          grace.count() / 1000,
          " s"));
    }
    kill_everything();
    look_again();
  });
}

void Supervisor::kill_everything() {
  is_killing_ = true;
  loop_.cancel(std::exchange(ask_timer_, 0));
  signal_everything(SIGKILL);
  if (give_up_timer_ == 0) {
    give_up_timer_ = loop_.after(kKillLimit, [this] {
      give_up_timer_ = 0;
      give_up();
    });
  }
}

void Supervisor::give_up() {
  std::string names;
  for (const pid_t pid : descendants_of(getpid(), spared_)) {
    names += str_cat(names.empty() ? "" : ", ", describe_process(pid));
    spared_.insert(pid);
  }
  for (Worker& worker : workers_) {
    if (!worker.wait_status) {
      reaper_.forget(worker.pid);
      worker.wait_status = SIGKILL;
    }
  }
  if (!names.empty()) {
    output_.say(str_cat(
        "[launch] these processes survive SIGKILL: ",
        names,
        ". They are blocked in the kernel. Check the kernel log (dmesg) and "
        "the disks"));
  }
  look_again();
}

void Supervisor::look_again() {
  if (any_running() || state_ == WorkersState::kDone ||
      state_ == WorkersState::kFailed) {
    return;
  }
  if (!descendants_of(getpid(), spared_).empty()) {
    if (is_killing_) {
      // Some processes may have forked between the scan and the kill.
      signal_everything(SIGKILL);
    } else if (!is_sweeping_) {
      is_sweeping_ = true;
      signal_everything(SIGTERM);
      kill_after(std::min(grace_, kSweepGrace));
    }
    return;
  }
  keep_for_next_start();
  forget_held();
  loop_.cancel(std::exchange(ask_timer_, 0));
  loop_.cancel(std::exchange(kill_timer_, 0));
  loop_.cancel(std::exchange(give_up_timer_, 0));
  const bool was_stopping = is_stopping();
  state_ = WorkersState::kDone;
  if (was_stopping) {
    drop_consequences();
  }
  output_.close_workers();
  if (was_stopping) {
    callbacks_.stopped();
  } else {
    callbacks_.finished();
  }
}

void Supervisor::forward(int signal, GroupSignalled group) {
  if (signal == SIGTSTP || signal == SIGCONT) {
    signal_everything(signal, group);
    return;
  }
  if (ends_nothing(signal) && !any_running()) {
    kept_.insert(signal); // between two starts, or before the first
    return;
  }
  for (Worker& worker : workers_) {
    if (worker.wait_status ||
        (group == GroupSignalled::kYes && is_in_our_group(worker.pid))) {
      continue;
    }
    if (ends_nothing(signal) && !can_take(worker.pid, signal)) {
      hold(worker, signal);
    } else {
      kill(worker.pid, signal);
      taken_.insert(signal);
    }
  }
}

void Supervisor::signal_everything(int signal, GroupSignalled group) {
  std::set<pid_t> except = spared_;
  for (const Worker& worker : workers_) {
    if (worker.held.contains(signal)) {
      except.insert(worker.pid);
    }
  }
  for (const pid_t pid : descendants_of(getpid(), except)) {
    if (group == GroupSignalled::kNo || !is_in_our_group(pid)) {
      kill(pid, suitable_for(pid, signal));
    }
  }
}

bool Supervisor::any_running() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) {
    return !w.wait_status;
  });
}

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

} // namespace accelerate
