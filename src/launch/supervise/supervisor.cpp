// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/supervisor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "base/str.h"
#include "launch/supervise/process_tree.h"

namespace accelerate {
namespace {

// From the first signal to SIGKILL. Everybody must be gone after 5 seconds.
constexpr std::chrono::milliseconds kGrace{3000};

} // namespace

Supervisor::Supervisor(
    EventLoop& loop,
    ChildReaper& reaper,
    OutputRouter& output,
    Callbacks callbacks)
    : loop_(loop),
      reaper_(reaper),
      output_(output),
      callbacks_(std::move(callbacks)) {}

void Supervisor::start(const std::vector<WorkerSpec>& workers, int attempt) {
  state_ = WorkersState::kStarting;
  workers_.clear();
  is_killing_ = false;
  is_sweeping_ = false;
  try {
    for (const auto& worker : workers) {
      const bool is_first = workers_.empty();
      const auto streams = output_.open(worker.rank, is_first, attempt);
      const pid_t pid = start_child(worker.command, streams);
      const size_t index = workers_.size();
      workers_.push_back({pid, worker.rank});
      reaper_.on_end(
          pid, [this, index](int status) { worker_ended(index, status); });
    }
  } catch (...) {
    kill_all_descendants(static_cast<int>(kGrace.count()));
    state_ = WorkersState::kDone;
    output_.close_workers();
    throw;
  }
  state_ = WorkersState::kRunning;
}

void Supervisor::worker_ended(size_t index, int wait_status) {
  Worker& worker = workers_[index];
  worker.wait_status = wait_status;
  if (state_ == WorkersState::kRunning && wait_status != 0) {
    state_ = WorkersState::kFailed;
    callbacks_.failed(
        {.rank = worker.rank,
         .host = host_name(),
         .exit_code = exit_code_of(wait_status),
         .how = describe_end(wait_status) + who_left_before(),
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

void Supervisor::stop(int signal, bool is_to_restart) {
  state_ = is_to_restart ? WorkersState::kRestarting : WorkersState::kStopping;
  is_killing_ = is_killing_ || signal == SIGKILL;
  signal_everything(is_killing_ ? SIGKILL : signal);
  if (kill_timer_ == 0 && !is_killing_) {
    kill_timer_ = loop_.after(kGrace, [this] {
      kill_timer_ = 0;
      is_killing_ = true;
      if (is_stopping()) {
        output_.say(str_cat(
            "[launch] processes still running after ",
            kGrace.count() / 1000,
            " s: killing them"));
      }
      signal_everything(SIGKILL);
      look_again();
    });
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
    } else if (!is_stopping() && !is_sweeping_) {
      is_sweeping_ = true;
      signal_everything(SIGTERM);
      kill_timer_ = loop_.after(kGrace, [this] {
        kill_timer_ = 0;
        is_killing_ = true;
        signal_everything(SIGKILL);
      });
    }
    return;
  }
  loop_.cancel(std::exchange(kill_timer_, 0));
  const bool was_stopping = is_stopping();
  state_ = WorkersState::kDone;
  output_.close_workers();
  if (was_stopping) {
    callbacks_.stopped();
  } else {
    callbacks_.finished();
  }
}

void Supervisor::signal_everything(int signal) {
  for (const pid_t pid : descendants_of(getpid(), spared_)) {
    kill(pid, signal);
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
