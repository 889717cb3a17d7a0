// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "base/exit_codes.h"
#include "base/str.h"
#include "base/variables.h"
#include "launch/supervise/error_file.h"
#include "launch/supervise/process_tree.h"

namespace accelerate {
namespace {

// For what workers leave behind; nobody saves anything there.
constexpr std::chrono::milliseconds kSweepGrace{3000};
// From SIGKILL to the end of our patience.
constexpr std::chrono::milliseconds kKillLimit{5000};

std::filesystem::path error_file_of(const WorkerSpec& worker) {
  const auto found = worker.command.variables.find(variables::kErrorFile);
  return found == worker.command.variables.end() ? "" : found->second;
}

// Who does not handle SIGQUIT or SIGUSR1 would only die, and the kernel keeps
// SIGTSTP from jobs without a shell.
int suitable_for(pid_t pid, int signal) {
  const int instead = signal == SIGQUIT   ? SIGABRT
                      : signal == SIGUSR1 ? SIGTERM
                      : signal == SIGTSTP ? SIGSTOP
                                          : signal;
  return instead == signal || has_signal_flag(pid, "SigCgt", signal) ? signal
                                                                     : instead;
}

bool is_told(pid_t pid) {
  return getpgid(pid) == getpgrp();
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
  is_killing_ = false;
  is_sweeping_ = false;
  try {
    for (const auto& worker : workers) {
      const size_t index = workers_.size();
      const auto streams =
          output_.open(worker.rank, static_cast<int>(index), worker.log_folder);
      const pid_t pid = start_child(worker.command, streams);
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
}

void Supervisor::kill_what_was_started() {
  // First of all: where files are short, their ends are what is missing.
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
  if (state_ == WorkersState::kRunning && wait_status != 0) {
    state_ = WorkersState::kFailed;
    std::string how = describe_end(wait_status) + who_left_before();
    const std::string message = read_error_file(worker.error_file);
    if (!message.empty()) {
      how += "; its error file says: " + message;
    }
    callbacks_.failed(
        {.rank = worker.rank,
         .host = host_name(),
         .exit_code = exit_code_of(wait_status),
         .how = how,
         .last_lines = output_.last_lines(worker.rank)});
  }
}

// A rank that returned early is a common cause of the others' failure.
std::string Supervisor::who_left_before() const {
  constexpr int kMostNamed = 8;
  std::string text;
  int named = 0;
  for (const auto& worker : workers_) {
    if (worker.wait_status == 0 && named++ < kMostNamed) {
      text +=
          str_cat("; rank ", worker.rank, " had left before with exit code 0");
    }
  }
  return text;
}

void Supervisor::stop(int signal, bool is_to_restart, GroupTold told) {
  state_ = is_to_restart ? WorkersState::kRestarting : WorkersState::kStopping;
  if (signal == SIGKILL) {
    kill_everything();
  } else if (signal == SIGUSR1) {
    ask_to_leave();
  } else if (!is_killing_) {
    loop_.cancel(std::exchange(ask_timer_, 0));
    signal_everything(signal, told);
    // What was suspended ends too.
    signal_everything(SIGCONT);
    if (kill_timer_ == 0) {
      kill_after(grace_);
    }
  }
  look_again();
}

void Supervisor::ask_to_leave() {
  if (is_killing_ || kill_timer_ != 0 || ask_timer_ != 0) {
    return; // They were told before.
  }
  for (const Worker& worker : workers_) {
    if (!worker.wait_status) {
      kill(worker.pid, suitable_for(worker.pid, SIGUSR1));
    }
  }
  // Who is suspended cannot leave.
  signal_everything(SIGCONT);
  ask_timer_ = loop_.after(grace_, [this] {
    ask_timer_ = 0;
    stop(SIGTERM, state_ == WorkersState::kRestarting);
  });
}

Departure Supervisor::departure() const {
  Departure departure;
  for (const Worker& worker : workers_) {
    if (worker.wait_status) {
      const int code = exit_code_of(*worker.wait_status);
      departure.is_any_preempted |= code == kExitPreempted;
      departure.is_orderly &= code == kExitPreempted || code == 0;
    }
  }
  return departure;
}

void Supervisor::kill_after(std::chrono::milliseconds grace) {
  loop_.cancel(kill_timer_);
  kill_timer_ = loop_.after(grace, [this, grace] {
    kill_timer_ = 0;
    if (is_stopping() && !is_sweeping_) {
      output_.say(str_cat(
          "[launch] processes still running after ",
          grace.count() / 1000,
          " s: killing them"));
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
        "[launch] left behind, as not even SIGKILL ends them: ",
        names,
        "; they wait in the kernel, look at its log (dmesg) and at the disks"));
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
      // Whoever forked between the look and the kill.
      signal_everything(SIGKILL);
    } else if (!is_sweeping_) {
      is_sweeping_ = true;
      signal_everything(SIGTERM);
      kill_after(std::min(grace_, kSweepGrace));
    }
    return;
  }
  loop_.cancel(std::exchange(ask_timer_, 0));
  loop_.cancel(std::exchange(kill_timer_, 0));
  loop_.cancel(std::exchange(give_up_timer_, 0));
  const bool was_stopping = is_stopping();
  state_ = WorkersState::kDone;
  output_.close_workers();
  if (was_stopping) {
    callbacks_.stopped();
  } else {
    callbacks_.finished();
  }
}

void Supervisor::forward(int signal, GroupTold told) {
  if (signal == SIGTSTP || signal == SIGCONT) {
    signal_everything(signal, told);
    return;
  }
  for (const Worker& worker : workers_) {
    if (!worker.wait_status &&
        (told == GroupTold::kNo || !is_told(worker.pid))) {
      kill(worker.pid, signal);
    }
  }
}

void Supervisor::signal_everything(int signal, GroupTold told) {
  for (const pid_t pid : descendants_of(getpid(), spared_)) {
    if (told == GroupTold::kNo || !is_told(pid)) {
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
