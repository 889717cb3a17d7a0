// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/signal_file.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

} // namespace

SignalFileGuard::SignalFileGuard() {
  sigset_t mask;
  sigemptyset(&mask);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (signal == SIGCHLD || is_for_workers(signal) ||
        (is_request_to_end(signal) && !is_ignored(signal))) {
      sigaddset(&mask, signal);
    }
  }
  blocked_ = mask;
  sigaddset(&blocked_, SIGPIPE);
  sigprocmask(SIG_BLOCK, &blocked_, &old_mask_);
  // If the parent ignores SIGCHLD, the end of children would not be noticed.
  signal(SIGCHLD, SIG_DFL);
  file_ = UniqueFile(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!file_) {
    const int cause = errno;
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    throw SystemError(str_cat(
        "[launch] cannot wait for signals (",
        std::strerror(cause),
        "); raise the limit on open files (ulimit -n)"));
  }
}

SignalFileGuard::~SignalFileGuard() {
  // A pending signal would end the program as soon as it is unblocked.
  const timespec now{};
  while (sigtimedwait(&blocked_, nullptr, &now) > 0) {
  }
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

std::optional<Signal> SignalFileGuard::next() {
  signalfd_siginfo info{};
  if (read(file_.get(), &info, sizeof(info)) != sizeof(info)) {
    return std::nullopt;
  }
  return Signal{
      static_cast<int>(info.ssi_signo),
      info.ssi_code == SI_KERNEL ? 0 : static_cast<pid_t>(info.ssi_pid)};
}

} // namespace accelerate
