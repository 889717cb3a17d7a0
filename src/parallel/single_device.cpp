// SPDX-License-Identifier: Apache-2.0
#include "parallel/engine.h"

namespace accelerate {

std::unique_ptr<ParallelEngine> make_single_device_engine() {
  return std::make_unique<ParallelEngine>();
}

} // namespace accelerate
