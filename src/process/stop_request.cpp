// SPDX-License-Identifier: Apache-2.0
#include "process/stop_request.h"

#include <signal.h>

#include <atomic>

namespace accelerate {
namespace {

std::atomic<bool> is_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void remember(int) {
  is_requested = true;
}

bool watch_signals() {
  for (const int number : {SIGTERM, SIGUSR1}) {
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
