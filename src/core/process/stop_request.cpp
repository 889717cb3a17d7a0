// SPDX-License-Identifier: Apache-2.0
#include "core/process/stop_request.h"

#include <pthread.h>
#include <signal.h>

#include <array>
#include <atomic>

namespace accelerate {
namespace {

std::atomic<bool> is_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr std::array kSignals = {SIGTERM, SIGUSR1};

void remember(int) {
  is_requested = true;
}

// Signals to a forked child are not stop requests: code that ends children with
// SIGTERM, such as worker pools, expects them to die. Signals stay blocked
// during the fork so that none gets in between.
thread_local sigset_t mask_before_fork;

void hold_back() {
  sigset_t ours;
  sigemptyset(&ours);
  for (const int number : kSignals) {
    sigaddset(&ours, number);
  }
  pthread_sigmask(SIG_BLOCK, &ours, &mask_before_fork);
}

void let_through() {
  pthread_sigmask(SIG_SETMASK, &mask_before_fork, nullptr);
}

void forget_in_child() {
  for (const int number : kSignals) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == remember) {
      signal(number, SIG_DFL);
    }
  }
  is_requested = false;
  let_through();
}

bool watch_signals() {
  pthread_atfork(hold_back, let_through, forget_in_child);
  for (const int number : kSignals) {
    struct sigaction before {};
    if (sigaction(number, nullptr, &before) == 0 &&
        (before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_DFL) {
      struct sigaction ours {};
      ours.sa_handler = remember;
      ours.sa_flags = SA_RESTART;
      sigaction(number, &ours, nullptr);
    }
  }
  return true;
}

} // namespace

void watch_for_stop_requests() {
  [[maybe_unused]] static const bool is_watched = watch_signals();
}

bool is_stop_requested() {
  return is_requested;
}

} // namespace accelerate
