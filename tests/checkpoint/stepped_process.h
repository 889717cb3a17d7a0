// SPDX-License-Identifier: Apache-2.0
// A process that stops before each of its file-system calls.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace accelerate::testing {

/// Runs a function in a forked process under `ptrace`. Between two calls of
/// `step` it is paused, as on a busy machine; `kill` ends it there, as SIGKILL
/// may at any time.
class SteppedProcess {
 public:
  /// Stops before the first file-system call.
  explicit SteppedProcess(const std::function<void()>& body);
  ~SteppedProcess();
  SteppedProcess(const SteppedProcess&) = delete;
  SteppedProcess& operator=(const SteppedProcess&) = delete;

  /// Makes the pending call, and stops before the next one. Returns false if it
  /// has ended instead.
  bool step();
  /// Steps at most `count` times. Returns the number of steps.
  int step(int count);
  /// Runs to the end without a stop.
  void finish();
  void kill();

  bool has_ended() const { return pid_ < 0; }
  /// The exception of `body`, or how the process ended; empty on success, or if
  /// `kill` ended it.
  const std::string& error() const { return error_; }

 private:
  /// Continues with `request`. Returns whether it stopped again.
  bool resume(int request);
  bool is_before_file_call() const;

  pid_t pid_ = -1;
  int signal_ = 0;
  char* shared_ = nullptr;
  std::string error_;
};

/// Whether this machine lets a process trace its children.
bool can_step_processes();

} // namespace accelerate::testing
