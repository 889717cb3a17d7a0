// SPDX-License-Identifier: Apache-2.0
// Child processes for tests, with time limits.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/temp_dir.h"

namespace accelerate::testing {

struct ProcessResult {
  /// The exit code, or 128 + n if signal n ended the process.
  int exit_code = -1;
  std::string out;
  std::string err;
  std::chrono::milliseconds duration{0};
};

/// A child process whose output goes to files, so that it never blocks. The
/// destructor kills it with its process group.
class Subprocess {
 public:
  Subprocess(
      std::vector<std::string> command,
      std::map<std::string, std::string> variables = {});
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const;
  /// Waits for the end; kills the process after `limit` and returns 128 + 9.
  ProcessResult wait(std::chrono::seconds limit = std::chrono::seconds(60));
  /// Its output so far.
  std::string out() const { return read_file(output_.path() / "out"); }
  std::string err() const { return read_file(output_.path() / "err"); }

 private:
  TempDir output_;
  pid_t pid_ = -1;
  bool is_reaped_ = false;
  std::chrono::steady_clock::time_point start_;
};

/// Starts, waits, returns.
ProcessResult run_process(
    std::vector<std::string> command,
    std::map<std::string, std::string> variables = {},
    std::chrono::seconds limit = std::chrono::seconds(60));

/// How long a test waits on a busy machine: an upper bound, not a measurement.
inline constexpr std::chrono::seconds kLimit{120};

/// Evaluates `condition` every few milliseconds until it holds or `limit` is
/// over; returns whether it held.
template <class Condition>
bool eventually(
    Condition condition,
    std::chrono::milliseconds limit = std::chrono::seconds(10));

void sleep_briefly();

template <class Condition>
bool eventually(Condition condition, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    sleep_briefly();
  }
  return true;
}

} // namespace accelerate::testing
