// SPDX-License-Identifier: Apache-2.0
#include "support/run_tests.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return accelerate::testing::run_tests();
}
