// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/signal_file.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return is_request_to_end(signal) && action.sa_handler == SIG_IGN;
}

} // namespace

SignalFileGuard::SignalFileGuard() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGWINCH}) {
    if (!is_ignored(signal)) {
      sigaddset(&mask, signal);
    }
  }
  sigprocmask(SIG_BLOCK, &mask, &old_mask_);
  // Where the parent ignores it, the ends of children would go unnoticed.
  signal(SIGCHLD, SIG_DFL);
  file_ = UniqueFile(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!file_) {
    throw SystemError(str_cat("[launch] signalfd: ", std::strerror(errno)));
  }
}

SignalFileGuard::~SignalFileGuard() {
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

std::optional<SignalFileGuard::Signal> SignalFileGuard::next() {
  signalfd_siginfo info{};
  if (read(file_.get(), &info, sizeof(info)) != sizeof(info)) {
    return std::nullopt;
  }
  const bool is_from_terminal = info.ssi_code == SI_KERNEL;
  return Signal{
      static_cast<int>(info.ssi_signo),
      is_from_terminal ? 0 : static_cast<pid_t>(info.ssi_pid)};
}

} // namespace accelerate
