// SPDX-License-Identifier: Apache-2.0
#include "core/base/background_thread.h"

#include <gtest/gtest.h>

namespace accelerate {
namespace {

sigset_t own_mask() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

TEST(BackgroundThread, BlocksSignalsButNotItsOwnFaults) {
  sigset_t inside;
  background_thread([&] { inside = own_mask(); }).join();
  const sigset_t outside = own_mask();
  for (const int sent : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1}) {
    EXPECT_EQ(sigismember(&inside, sent), 1) << sent;
    EXPECT_EQ(sigismember(&outside, sent), 0) << sent;
  }
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    EXPECT_EQ(sigismember(&inside, fault), 0) << fault;
  }
}

} // namespace
} // namespace accelerate
