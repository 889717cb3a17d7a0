// SPDX-License-Identifier: Apache-2.0
// What looking on costs a step: its clock, and the record of its collectives,
// while a watchdog is awake. Without torch.
//
// Prints one JSON line: nanoseconds per step (the least of several blocks, as
// other work on the machine only adds), beside 1 % of a step of 1 ms.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "observe/rank_record.h"
#include "observe/watchdog.h"

namespace {

using namespace accelerate;

// As a step of DDP has them: a batch, a forward, a backward with 32 gradients
// and the exchange that compares it, a reduced loss, an update.
void step(const Membership& membership, uint64_t& number) {
  auto& record = RankRecord::of_this_thread();
  const auto collective = [&] {
    const ObservedOperation operation{
        "all_reduce", ++number, "Float", 2, {1024, 1024}};
    {
      const OperationScope start(Part::kCommunication, &membership, operation);
    }
    const OperationScope finish(Part::kCommunication, &membership, operation);
  };
  { const PartScope data(Part::kData); }
  { const PartScope forward(Part::kForward); }
  {
    const PartScope backward(Part::kBackward);
    for (int i = 0; i < 32; ++i) {
      record.note_gradient();
    }
  }
  collective();
  {
    const TopicScope topic("reduce mean Float[1]");
    collective();
  }
  const PartScope optimizer(Part::kOptimizer);
  record.note_update();
}

} // namespace

int main() {
  auto made = std::make_unique<Membership>();
  made->threshold = std::chrono::seconds(10);
  const auto& membership = Watchdog::instance().join(std::move(made));
  constexpr int kSteps = 20'000;
  constexpr int kBlocks = 20;
  constexpr double kBudget = 1e6 / 100;
  double best = std::numeric_limits<double>::max();
  uint64_t number = 0;
  for (int block = 0; block < kBlocks; ++block) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) {
      step(membership, number);
    }
    const std::chrono::duration<double, std::nano> time =
        std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count() / kSteps);
  }
  std::printf(
      "{\"bench\": \"observation\", \"case\": \"step clock, 2 collectives, 32 "
      "gradients; beside 1 %% of 1 ms\", \"ours\": %.0f, \"peer\": %.0f, "
      "\"unit\": \"ns\", \"ratio\": %.2f}\n",
      best,
      kBudget,
      kBudget / best);
}
