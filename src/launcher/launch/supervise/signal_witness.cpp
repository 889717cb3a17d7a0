// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/signal_witness.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "accelerate/error.h"
#include "core/base/process_stat.h"
#include "core/base/str.h"
#include "launcher/launch/supervise/process_tree.h"

namespace accelerate {
namespace {

constexpr const char* kName = "launch-witness";

/// The memory shown in /proc/self/cmdline; empty if /proc does not contain its
/// address.
std::span<char> command_line() {
  const auto stat = read_process_stat("self");
  return !stat || stat->arguments_end <= stat->arguments_begin
             ? std::span<char>()
             : std::span(
                   reinterpret_cast<char*>(stat->arguments_begin),
                   stat->arguments_end - stat->arguments_begin);
}

// Runs in the child of a program that may have threads. Uses system calls only.
[[noreturn]] void report(SignalFileGuard& signals, int reports) {
  while (true) {
    pollfd waited{signals.file(), POLLIN, 0};
    poll(&waited, 1, -1);
    while (const auto signal = signals.next()) {
      [[maybe_unused]] const auto written =
          write(reports, &*signal, sizeof(*signal));
    }
  }
}

} // namespace

SignalWitness::SignalWitness(
    SignalFileGuard& signals,
    const std::string& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw SystemError(str_cat(
        "[launch] cannot create a pipe (",
        std::strerror(errno),
        "); raise the limit on open files (ulimit -n)"));
  }
  reports_ = UniqueFile(ends[0]);
  const UniqueFile childs_end(ends[1]);
  const std::span<char> shown = command_line();
  const std::string title = str_cat(kName, ' ', command);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    throw SystemError(str_cat(
        "[launch] cannot start a process (",
        std::strerror(errno),
        "); raise the limit on processes (ulimit -u)"));
  }
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(128 + SIGKILL);
    }
    prctl(PR_SET_NAME, kName);
    std::fill(shown.begin(), shown.end(), '\0');
    if (!shown.empty()) {
      std::copy_n(
          title.begin(),
          std::min(title.size(), shown.size() - 1),
          shown.begin());
    }
    report(signals, childs_end.get());
  }
}

SignalWitness::~SignalWitness() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

std::optional<Signal> SignalWitness::next() {
  Signal signal;
  if (read(file(), &signal, sizeof(signal)) != sizeof(signal)) {
    return std::nullopt;
  }
  return signal;
}

bool SignalWitness::is_busy(int signal) const {
  if (pid_ <= 0) {
    return false;
  }
  // The order matters: reports sent before the witness came to rest are in the
  // pipe.
  const bool is_resting = is_at_rest(pid_, signal);
  pollfd reports{file(), POLLIN, 0};
  return !is_resting || poll(&reports, 1, 0) > 0;
}

} // namespace accelerate
