// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace accelerate {

/// A thread that leaves signals to those of the program. Its own faults are
/// not left: blocked, they would end the process past every handler, without
/// a word.
inline std::thread background_thread(std::function<void()> run) {
  sigset_t others;
  sigset_t before;
  sigfillset(&others);
  for (const int fault :
       {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    sigdelset(&others, fault);
  }
  pthread_sigmask(SIG_SETMASK, &others, &before);
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

} // namespace accelerate
