// SPDX-License-Identifier: Apache-2.0
// Signals read from a file instead of interrupting the program.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>

#include "core/base/unique_file.h"

namespace accelerate {

/// A signal that the launcher received.
struct Signal {
  int number = 0;
  /// 0 if it came from the kernel (a terminal), or from outside of this PID
  /// namespace.
  pid_t sender = 0;
};

/// Blocks SIGCHLD, requests to end and signals for workers during its lifetime,
/// and returns them one by one. Requests that the parent ignores (nohup) stay
/// ignored. SIGPIPE is also blocked, so that writes fail instead. The
/// destructor discards pending signals.
class SignalFileGuard {
 public:
  SignalFileGuard();
  ~SignalFileGuard();
  SignalFileGuard(const SignalFileGuard&) = delete;
  SignalFileGuard& operator=(const SignalFileGuard&) = delete;

  /// Readable while a signal is pending.
  int file() const { return file_.get(); }
  /// The next pending signal. Empty if there is none.
  std::optional<Signal> next();

 private:
  sigset_t blocked_{};
  sigset_t old_mask_{};
  UniqueFile file_;
};

/// Whether `signal` asks the program to end.
constexpr bool is_request_to_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP ||
         signal == SIGQUIT;
}

/// Whether `signal` is meant for the workers and only passed on.
constexpr bool is_for_workers(int signal) {
  return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGWINCH ||
         signal == SIGTSTP || signal == SIGCONT;
}

} // namespace accelerate
