// SPDX-License-Identifier: Apache-2.0
// Signals read from a file instead of interrupting the program.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>

#include "accelerate/export.h"
#include "launch/supervise/unique_file.h"

namespace accelerate {

/// Blocks SIGCHLD, SIGWINCH and the requests to end (SIGINT, SIGTERM, SIGHUP)
/// while it lives, and hands them out one by one. Requests that the parent
/// ignores (nohup) stay ignored.
class ACCELERATE_API SignalFileGuard {
 public:
  struct Signal {
    int number = 0;
    /// 0 where the terminal sent it.
    pid_t sender = 0;
  };

  SignalFileGuard();
  ~SignalFileGuard();
  SignalFileGuard(const SignalFileGuard&) = delete;
  SignalFileGuard& operator=(const SignalFileGuard&) = delete;

  /// Readable while a signal waits.
  int file() const { return file_.get(); }
  /// The next waiting signal; nothing where there is none.
  std::optional<Signal> next();

 private:
  sigset_t old_mask_{};
  UniqueFile file_;
};

/// Whether `signal` asks the program to end.
constexpr bool is_request_to_end(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
}

} // namespace accelerate
