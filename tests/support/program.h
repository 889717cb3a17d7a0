// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace accelerate::testing {

/// The program `accelerate`.
inline const std::string kProgram = std::string(TEST_BIN_DIR) + "/accelerate";

/// Trains on all ranks, and compares with training on one.
inline const std::string kTraining = kProgram + "-selftest";

} // namespace accelerate::testing
