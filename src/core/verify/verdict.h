// SPDX-License-Identifier: Apache-2.0
// What `accelerate verify` found out.
#pragma once

#include <string>
#include <vector>

namespace accelerate::verify {

enum class Outcome { kAgrees, kDisagrees, kNotComparable };

struct Verdict {
  Outcome outcome = Outcome::kAgrees;
  /// Lines for the user, without a prefix.
  std::vector<std::string> lines = {};
};

} // namespace accelerate::verify
