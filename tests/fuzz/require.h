// SPDX-License-Identifier: Apache-2.0
// What a fuzz target promises; a broken promise is said and is a crash.
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
