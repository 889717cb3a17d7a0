// SPDX-License-Identifier: Apache-2.0
// The assertions of a fuzz target: a violation is printed and crashes.
#pragma once

#include <cstdlib>
#include <iostream>

inline void require(
    bool holds,
    const char* what = "what this target promises") {
  if (!holds) {
    std::cerr << "not so: " << what << '\n';
    std::abort();
  }
}
