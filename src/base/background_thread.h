// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace accelerate {

/// A thread that leaves signals to those of the program. Its own faults are
/// not left: blocked, they would end the process past every handler, without
/// a word. Throws `std::system_error` where the system refuses a thread.
inline std::thread background_thread(std::function<void()> run) {
  struct Mask {
    Mask() {
      sigset_t others;
      sigfillset(&others);
      for (const int fault :
           {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
        sigdelset(&others, fault);
      }
      pthread_sigmask(SIG_SETMASK, &others, &before);
    }
    ~Mask() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const Mask mask;
  return std::thread(std::move(run));
}

} // namespace accelerate
