// SPDX-License-Identifier: Apache-2.0
// For tests of machines that prove to each other that they know a token.
#pragma once

#include <gtest/gtest.h>

#include "accelerate/error.h"
#include "launcher/launch/machines/message_code.h"

namespace accelerate::testing {

/// Skips its tests in a build without libsodium.
class NeedsCodes : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      message_code("", "");
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

} // namespace accelerate::testing
