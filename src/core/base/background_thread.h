// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <functional>
#include <thread>
#include <utility>

namespace accelerate {

/// A thread that blocks signals, so that the program's threads receive them.
/// Synchronous faults stay unblocked, because they would otherwise kill the
/// process without calling any handler. Throws `std::system_error` if no thread
/// can be created.
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
