// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "accelerate/error.h"
#include "core/base/exit_codes.h"
#include "core/base/str.h"
#include "launcher/launch/supervise/containment.h"
#include "launcher/launch/supervise/process_tree.h"
#include "launcher/launch/supervise/signal_file.h"

namespace accelerate {
namespace {

constexpr int kKillLimitMs = 4000;

// Returns the wait status of `child`.
int watch_child(
    pid_t child,
    SignalFileGuard& signals,
    const UniqueFile& own_end) {
  while (true) {
    pollfd waited{signals.file(), POLLIN, 0};
    poll(&waited, 1, -1);
    while (const auto signal = signals.next()) {
      if (signal->number != SIGCHLD) {
        [[maybe_unused]] const auto written =
            write(own_end.get(), &*signal, sizeof(*signal));
      }
      // The shell waits for this process, so this process must be suspended,
      // too.
      if (signal->number == SIGTSTP) {
        raise(SIGSTOP);
      }
    }
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
      if (ended == child) {
        return status;
      }
    }
  }
}

int run_child(
    const std::function<int(int lifeline)>& body,
    int lifeline,
    bool is_contained) {
  try {
    if (is_contained) {
      enter_containment();
    }
    adopt_orphans();
  } catch (const SystemError& error) {
    std::cerr << "accelerate: " << error.what() << '\n';
    return kExitUsage;
  }
  return body(lifeline);
}

} // namespace

int run_guarded(
    const std::function<int(int lifeline)>& body,
    bool is_contained) {
  int pipe_ends[2];
  // The pipe does not block: a suspended supervisor must not block its
  // guardian.
  if (pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw SystemError(str_cat(
        "[launch] cannot create a pipe (",
        std::strerror(errno),
        "); raise the limit on open files (ulimit -n)"));
  }
  UniqueFile lifeline(pipe_ends[0]);
  UniqueFile own_end(pipe_ends[1]);
  if (is_contained) {
    prepare_containment();
  }
  adopt_orphans();
  // Block signals before the fork, so that a signal in between is not lost.
  SignalFileGuard signals;
  std::cout.flush();
  const pid_t child = fork();
  if (child < 0) {
    throw SystemError(str_cat(
        "[launch] cannot start the supervisor process (",
        std::strerror(errno),
        "); raise the limit on processes (ulimit -u)"));
  }
  if (child == 0) {
    own_end.reset();
    const int code = run_child(body, lifeline.get(), is_contained);
    std::cout.flush();
    std::_Exit(code);
  }
  lifeline.reset();
  const int status = watch_child(child, signals, own_end);
  kill_all_descendants(kKillLimitMs);
  if (WIFSIGNALED(status)) {
    std::cerr << "[launch] the supervisor process was killed by signal "
              << WTERMSIG(status) << " (" << strsignal(WTERMSIG(status))
              << "); every worker was killed\n";
    return 128 + WTERMSIG(status);
  }
  return WEXITSTATUS(status);
}

} // namespace accelerate
