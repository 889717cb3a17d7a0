// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <torch/utils.h>

#include "accelerate/training/random.h"

namespace accelerate {

void set_seed(uint64_t seed, SeedOptions options) {
  torch::manual_seed(seed + options.offset);
  if (options.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
}

} // namespace accelerate
