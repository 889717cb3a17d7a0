// SPDX-License-Identifier: Apache-2.0
// Signals read from a file instead of interrupting the program.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>

#include "accelerate/export.h"
#include "base/unique_file.h"

namespace accelerate {

/// A signal that reached the launcher.
struct Signal {
  int number = 0;
  /// 0 where it came from the kernel (a terminal), or from outside of what this
  /// process can see.
  pid_t sender = 0;
};

/// Blocks SIGCHLD, the requests to end and what workers are told while it
/// lives, and hands them out one by one. Requests that the parent ignores
/// (nohup) stay ignored. SIGPIPE is blocked too: a write fails instead. What
/// nobody took goes with the object.
class ACCELERATE_API SignalFileGuard {
 public:
  SignalFileGuard();
  ~SignalFileGuard();
  SignalFileGuard(const SignalFileGuard&) = delete;
  SignalFileGuard& operator=(const SignalFileGuard&) = delete;

  /// Readable while a signal waits.
  int file() const { return file_.get(); }
  /// The next waiting signal; nothing where there is none.
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

/// Whether `signal` is meant for the workers: passed on, nothing else.
constexpr bool is_for_workers(int signal) {
  return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGWINCH ||
         signal == SIGTSTP || signal == SIGCONT;
}

} // namespace accelerate
