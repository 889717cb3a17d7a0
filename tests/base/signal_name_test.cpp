// SPDX-License-Identifier: Apache-2.0
#include "core/base/signal_name.h"

#include <gtest/gtest.h>

#include <cstring>

namespace accelerate {
namespace {

TEST(SignalName, IsThatOfGlibc) {
  for (int signal = 1; signal < 32; ++signal) {
    EXPECT_EQ(signal_name(signal), std::string("SIG") + sigabbrev_np(signal));
  }
}

TEST(SignalName, IsANumberForOthers) {
  EXPECT_EQ(signal_name(40), "signal 40");
}

} // namespace
} // namespace accelerate
