// SPDX-License-Identifier: Apache-2.0
// Compares schedules: prints the learning rate every 25 steps.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

int main() {
  using namespace accelerate;
  const SchedulerOptions options = {
      .num_warmup_steps = 20, .num_training_steps = 150};
  const std::vector<std::pair<std::string, Schedule>> schedules = {
      {"linear", named_schedule("linear", options)},
      {"cosine", named_schedule("cosine", options)},
      {"StepLR", StepLR{.step_size = 50, .gamma = 0.5}},
      {"OneCycleLR", OneCycleLR{.max_lr = {1.0}, .total_steps = 151}},
      {"LambdaLR",
       LambdaLR{
           .factor =
               [](int64_t step) {
                 return 1.0 / static_cast<double>(1 + step / 30);
               }}},
      // A custom warm-up, then a schedule that starts at the full rate.
      {"SequentialLR",
       SequentialLR{
           .schedules =
               {LambdaLR{
                    .factor =
                        [](int64_t step) {
                          return static_cast<double>(step + 1) / 50;
                        }},
                ExponentialLR{.gamma = 0.98}},
           .milestones = {50}}},
  };
  for (const auto& [name, schedule] : schedules) {
    const auto weight = torch::zeros({1}, torch::requires_grad());
    optim::SGD optimizer({weight}, {.lr = 1.0, .momentum = 0.9});
    Scheduler scheduler(optimizer, schedule);
    std::printf("%-12s", name.c_str());
    for (int step = 0; step <= 150; ++step) {
      if (step % 25 == 0) {
        std::printf(" %6.3f", scheduler.last_lr()[0]);
      }
      optimizer.step();
      scheduler.step();
    }
    std::printf("\n");
  }
  // Depends on a metric. Usually stepped once per epoch.
  const auto weight = torch::zeros({1}, torch::requires_grad());
  optim::SGD optimizer({weight}, {.lr = 1.0});
  Scheduler plateau(optimizer, ReduceLROnPlateau{.factor = 0.5, .patience = 1});
  for (const double loss : {1.0, 0.8, 0.8, 0.8, 0.7}) {
    plateau.step(loss);
  }
  std::printf("after a plateau of the loss: %.3f\n", plateau.last_lr()[0]);
}
