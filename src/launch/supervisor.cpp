// SPDX-License-Identifier: Apache-2.0
#include "launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

// From the first SIGTERM to SIGKILL. Everybody must be gone after 5 seconds.
constexpr std::chrono::milliseconds kGrace{3000};

/// Blocks the signals that the supervisor reads from a descriptor, and puts
/// the old mask back.
class SignalFileGuard {
 public:
  SignalFileGuard() {
    sigset_t mask;
    sigemptyset(&mask);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) {
      sigaddset(&mask, signal);
    }
    sigprocmask(SIG_BLOCK, &mask, &old_mask_);
    file_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalFileGuard() {
    close(file_);
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  SignalFileGuard(const SignalFileGuard&) = delete;
  SignalFileGuard& operator=(const SignalFileGuard&) = delete;
  int file() const { return file_; }

 private:
  sigset_t old_mask_{};
  int file_ = -1;
};

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (auto& text : strings) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(
    const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!variables.contains(text.substr(0, text.find('=')))) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : variables) {
    result.push_back(name + "=" + value);
  }
  return result;
}

// Runs in the child between fork and exec: system calls only.
[[noreturn]] void become_worker(
    char* const* command,
    char* const* environment,
    pid_t parent,
    int report) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(128 + SIGKILL); // The launcher died before the line above.
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(command[0], command, environment);
  const int cause = errno;
  [[maybe_unused]] const auto written = write(report, &cause, sizeof(cause));
  _exit(127);
}

std::string describe(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return str_cat(
        "was ended by signal ", signal, " (", strsignal(signal), ")");
  }
  return str_cat("ended with exit code ", WEXITSTATUS(wait_status));
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status)
                                  : WEXITSTATUS(wait_status);
}

} // namespace

int Supervisor::run(const std::vector<WorkerSpec>& workers) {
  const SignalFileGuard signals;
  children_.clear();
  exit_code_.reset();
  kill_at_.reset();
  try {
    for (const auto& worker : workers) {
      start(worker);
    }
  } catch (...) {
    stop_all(SIGKILL);
    while (any_running()) {
      wait_for_event(signals.file());
    }
    throw;
  }
  while (any_running()) {
    wait_for_event(signals.file());
  }
  return exit_code_.value_or(0);
}

void Supervisor::start(const WorkerSpec& worker) {
  auto command = worker.command;
  auto environment = environment_with(worker.variables);
  const auto command_pointers = pointers_to(command);
  const auto environment_pointers = pointers_to(environment);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) {
    throw SystemError(str_cat("[launch] pipe: ", std::strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    become_worker(
        command_pointers.data(),
        environment_pointers.data(),
        parent,
        report[1]);
  }
  const int fork_error = errno;
  close(report[1]);
  int cause = 0;
  // The pipe closes without a word when exec succeeds.
  const auto got = child > 0 ? read(report[0], &cause, sizeof(cause)) : 0;
  close(report[0]);
  if (child < 0) {
    throw SystemError(str_cat(
        "[launch] cannot start rank ",
        worker.rank,
        ": ",
        std::strerror(fork_error)));
  }
  children_.push_back({child, worker.rank, std::nullopt});
  if (got == sizeof(cause)) {
    throw SystemError(str_cat(
        "[launch] cannot execute '",
        worker.command[0],
        "': ",
        std::strerror(cause),
        "; give the path of a program or of a .py file"));
  }
}

void Supervisor::wait_for_event(int signals) {
  int timeout = -1;
  if (kill_at_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        *kill_at_ - std::chrono::steady_clock::now());
    timeout = std::max(0, static_cast<int>(left.count()));
  }
  pollfd waited{signals, POLLIN, 0};
  if (poll(&waited, 1, timeout) == 0) {
    log_ << "[launch] workers still running after " << kGrace.count() / 1000
         << " s: killing them\n";
    kill_at_.reset();
    signal_running(SIGKILL);
    return;
  }
  signalfd_siginfo event{};
  while (read(signals, &event, sizeof(event)) == sizeof(event)) {
    const int signal = static_cast<int>(event.ssi_signo);
    if (signal == SIGCHLD) {
      collect_children();
    } else if (!exit_code_) {
      log_ << "[launch] got " << strsignal(signal) << ": ending all workers\n";
      exit_code_ = 128 + signal;
      stop_all(signal);
    } else {
      signal_running(SIGKILL); // Asked twice: no more patience.
    }
  }
}

void Supervisor::collect_children() {
  for (auto& child : children_) {
    int status = 0;
    if (child.wait_status || waitpid(child.pid, &status, WNOHANG) <= 0) {
      continue;
    }
    child.wait_status = status;
    // What the worker itself started must not outlive it.
    kill(-child.pid, SIGKILL);
    if (status != 0 && !exit_code_) {
      report_failure(child);
      exit_code_ = exit_code_of(status);
      stop_all(SIGTERM);
    }
  }
}

void Supervisor::report_failure(const Child& child) {
  log_ << "[launch] rank " << child.rank << " (pid " << child.pid << ") "
       << describe(*child.wait_status);
  for (const auto& other : children_) {
    if (other.wait_status == 0) {
      log_ << "; rank " << other.rank << " had left before with exit code 0";
    }
  }
  if (any_running()) {
    log_ << "; ending the other workers";
  }
  log_ << '\n';
}

void Supervisor::stop_all(int signal) {
  signal_running(signal);
  kill_at_ = std::chrono::steady_clock::now() + kGrace;
}

void Supervisor::signal_running(int signal) {
  for (const auto& child : children_) {
    if (!child.wait_status) {
      kill(-child.pid, signal);
    }
  }
}

bool Supervisor::any_running() const {
  return std::any_of(children_.begin(), children_.end(), [](const Child& c) {
    return !c.wait_status;
  });
}

} // namespace accelerate
