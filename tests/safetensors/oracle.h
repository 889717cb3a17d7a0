// SPDX-License-Identifier: Apache-2.0
// Calls oracle.py, if a Python with the packages is available.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/subprocess.h"

namespace accelerate::testing {

/// Skips the test if no Python oracle is available.
#define NEEDS_ORACLE()                                               \
  if (std::getenv("ACCELERATE_ORACLE_PYTHON") == nullptr) {          \
    GTEST_SKIP() << "ACCELERATE_ORACLE_PYTHON is not set; it names " \
                    "a Python with safetensors and transformers";    \
  }

/// The output of `oracle.py arguments...`, without the last newline.
inline std::string ask_oracle(std::vector<std::string> arguments) {
  std::vector<std::string> command = {
      std::getenv("ACCELERATE_ORACLE_PYTHON"),
      std::filesystem::path(TEST_REFERENCE_DIR) / "../safetensors/oracle.py"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto result =
      run_process(std::move(command), {}, std::chrono::seconds(240));
  if (result.exit_code != 0) {
    throw std::runtime_error("oracle.py failed: " + result.err);
  }
  return result.out.substr(0, result.out.find_last_not_of('\n') + 1);
}

} // namespace accelerate::testing
