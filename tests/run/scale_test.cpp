// SPDX-License-Identifier: Apache-2.0
// The fp16 scale if steps are skipped, late or of several optimizers. Every
// loss is sum(w * x), whose gradient by w is x, so that the gradients that an
// optimizer sees are known exactly.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/training/grad_scaler.h"
#include "training/optim/optimizer_step.h"
#include "training/optim/torch_optimizer.h"

namespace accelerate {
namespace {

using torch::Tensor;

struct ScaledRun {
  std::shared_ptr<OptimizerStep> optimizer_of(const Tensor& weight) {
    owned.push_back(std::make_unique<torch::optim::SGD>(
        std::vector<Tensor>{weight}, torch::optim::SGDOptions(1)));
    optimizers.push_back(std::make_shared<OptimizerStep>(
        std::make_unique<TorchOptimizer>(*owned.back()), step_state, scaler));
    return optimizers.back();
  }
  void backward(const Tensor& loss) {
    move_scale(*scaler, optimizers);
    scaler->scale(loss).backward();
  }

  std::shared_ptr<StepState> step_state = std::make_shared<StepState>();
  std::shared_ptr<GradScaler> scaler = std::make_shared<GradScaler>(
      GradScalerOptions{.init_scale = 65536, .growth_interval = 1});
  std::vector<std::unique_ptr<torch::optim::Optimizer>> owned;
  std::vector<std::shared_ptr<OptimizerStep>> optimizers;
};

Tensor weight() {
  return torch::zeros({2}, torch::requires_grad());
}

bool is_all(const Tensor& tensor, double value) {
  return tensor.equal(torch::full_like(tensor, value));
}

TEST(Scale, AnOptimizerWithoutGradientsIsUnscaledWhenItHasSome) {
  ScaledRun run;
  const auto a = weight();
  const auto b = weight();
  const auto first = run.optimizer_of(a);
  const auto second = run.optimizer_of(b);
  run.backward((3 * a).sum());
  first->unscale();
  second->unscale();
  first->step();
  first->zero_grad();
  run.backward((5 * b).sum());
  second->step();
  EXPECT_TRUE(is_all(a, -3));
  EXPECT_TRUE(is_all(b, -5));
}

TEST(Scale, ASkippedStepWithoutGradientsIsForgotten) {
  ScaledRun run;
  auto w = weight();
  const auto optimizer = run.optimizer_of(w);
  run.backward((3 * w).sum());
  optimizer->unscale();
  // `model.zero_grad()`, which the optimizer does not notice.
  w.mutable_grad() = Tensor();
  run.backward((5 * w).sum());
  optimizer->step();
  EXPECT_TRUE(is_all(w, -5));
}

TEST(Scale, ASkippedStepWhoseGradientsRemainIsRepeated) {
  for (const bool fills : {false, true}) {
    ScaledRun run;
    auto w = weight();
    const auto optimizer = run.optimizer_of(w);
    run.backward((3 * w).sum());
    optimizer->unscale();
    if (fills) {
      w.mutable_grad().zero_();
    }
    run.backward((5 * w).sum());
    optimizer->step();
    EXPECT_TRUE(is_all(w, fills ? -5 : -8));
  }
}

TEST(Scale, ABackwardBetweenUnscalingAndTheStepChangesNothing) {
  ScaledRun run;
  const auto a = weight();
  const auto b = weight();
  const auto first = run.optimizer_of(a);
  const auto second = run.optimizer_of(b);
  run.backward((3 * a).sum());
  first->unscale();
  run.backward((5 * b).sum());
  first->step();
  second->step();
  EXPECT_TRUE(is_all(a, -3));
  EXPECT_TRUE(is_all(b, -5));
  EXPECT_EQ(run.scaler->current_scale(), 65536)
      << "nothing was used before the second backward";
}

TEST(Scale, GradientsThatAreNotZeroedAddUpAsWithoutAScale) {
  ScaledRun run;
  auto w = weight();
  const auto optimizer = run.optimizer_of(w);
  run.backward((3 * w).sum());
  optimizer->step();
  run.backward((5 * w).sum());
  optimizer->step();
  EXPECT_TRUE(is_all(w, -3 - 8));
}

TEST(Scale, AnOverflowThatWasSeenAndDroppedShrinksIt) {
  ScaledRun run;
  auto w = weight();
  const auto optimizer = run.optimizer_of(w);
  run.backward((std::numeric_limits<float>::infinity() * w).sum());
  optimizer->unscale();
  w.mutable_grad() = Tensor();
  run.backward((5 * w).sum());
  EXPECT_EQ(run.scaler->current_scale(), 32768);
  optimizer->step();
  EXPECT_TRUE(is_all(w, -5));
}

TEST(Scale, ARollbackForgetsThatGradientsWereUnscaled) {
  ScaledRun run;
  const auto a = weight();
  const auto optimizer = run.optimizer_of(a);
  run.backward((1024 * a).sum());
  optimizer->unscale();
  optimizer->load_state_dict(optimizer->state_dict());
  run.backward((3 * a).sum());
  optimizer->step();
  EXPECT_TRUE(is_all(a, -3));
}

TEST(Scale, AnOptimizerThatGoesTakesItsOverflowAlong) {
  ScaledRun run;
  auto w = weight();
  {
    const auto gone = run.optimizer_of(w);
    run.backward((3 * w).sum());
    gone->unscale();
    run.optimizers.clear();
    EXPECT_TRUE(run.scaler->is_unscaled(gone.get()));
  }
  w.mutable_grad() = Tensor();
  const auto optimizer = run.optimizer_of(w);
  EXPECT_FALSE(run.scaler->is_unscaled(optimizer.get()));
  run.backward((5 * w).sum());
  optimizer->step();
  EXPECT_TRUE(is_all(w, -5));
}

} // namespace
} // namespace accelerate
