// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/training/random.h"

namespace accelerate {
namespace {

TEST(SetSeed, GivesTheNumbersThatTorchGivesForThatSeed) {
  torch::manual_seed(45);
  const auto expected = torch::rand({8});
  set_seed(42, {.offset = 3});
  EXPECT_TRUE(torch::rand({8}).equal(expected));
}

TEST(SetSeed, CanAskForDeterministicAlgorithms) {
  set_seed(1, {.deterministic = true});
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

} // namespace
} // namespace accelerate
