// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "accelerate/error.h"
#include "base/str.h"
#include "launch/supervise/process_tree.h"
#include "launch/supervise/signal_file.h"

namespace accelerate {
namespace {

constexpr int kKillLimitMs = 4000;

// Returns the wait status of `child`.
int watch_child(pid_t child, SignalFileGuard& signals) {
  while (true) {
    pollfd waited{signals.file(), POLLIN, 0};
    poll(&waited, 1, -1);
    while (const auto signal = signals.next()) {
      // The terminal sends its signals to the child as well.
      if (is_request_to_end(signal->number) && signal->sender != 0) {
        kill(child, signal->number);
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

} // namespace

int run_guarded(const std::function<int(int lifeline)>& body) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) {
    throw SystemError(str_cat("[launch] pipe: ", std::strerror(errno)));
  }
  UniqueFile lifeline(pipe_ends[0]);
  UniqueFile own_end(pipe_ends[1]);
  adopt_orphans();
  // Blocked before the fork: a signal that arrives between is not lost.
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
    adopt_orphans();
    const int code = body(lifeline.get());
    std::cout.flush();
    std::_Exit(code);
  }
  lifeline.reset();
  const int status = watch_child(child, signals);
  kill_all_descendants(kKillLimitMs);
  if (WIFSIGNALED(status)) {
    std::cerr << "[launch] the supervisor process was ended by signal "
              << WTERMSIG(status) << " (" << strsignal(WTERMSIG(status))
              << "); every worker was killed\n";
    return 128 + WTERMSIG(status);
  }
  return WEXITSTATUS(status);
}

} // namespace accelerate
