// SPDX-License-Identifier: Apache-2.0
// `accelerate-selftest`.
#include <exception>
#include <iostream>

#include "training/selftest/selftest.h"

int main() {
  try {
    accelerate::run_selftest();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
