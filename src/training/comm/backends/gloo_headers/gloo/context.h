// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo's header, which the torch wheel does not ship although
// its ProcessGroupGloo.hpp includes it. Declarations only: nothing here is
// instantiated by this project.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
} // namespace gloo
