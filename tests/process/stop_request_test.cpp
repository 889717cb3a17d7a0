// SPDX-License-Identifier: Apache-2.0
#include "core/process/stop_request.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accelerate {
namespace {

TEST(StopRequest, IsRememberedByTheProcessAndEndsItsChildren) {
  watch_for_stop_requests();
  EXPECT_FALSE(is_stop_requested());
  raise(SIGUSR1);
  EXPECT_TRUE(is_stop_requested());
  for (const int number : {SIGTERM, SIGUSR1}) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      while (true) {
        pause();
      }
    }
    kill(child, number);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), number);
  }
}

} // namespace
} // namespace accelerate
