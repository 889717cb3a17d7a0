// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>

#include "accelerate/optimizer.h"
#include "training/optim/prepared_optimizers.h"

namespace accelerate {
namespace {

/// The prepared step and the schedulers of one optimizer.
struct Made {
  std::vector<std::weak_ptr<OptimizerStep>> steps;
  std::vector<std::weak_ptr<Stateful>> schedulers;
};

struct AllMade {
  std::mutex mutex;
  std::map<const torch::optim::Optimizer*, Made> by_optimizer;
};

AllMade& all_made() {
  static auto* all = new AllMade;
  return *all;
}

/// Steps and schedulers refer to their optimizer, which therefore outlives
/// them. So an entry in use never has the address of another optimizer.
template <class Work>
void with_made(const torch::optim::Optimizer& optimizer, Work&& work) {
  auto& [mutex, by_optimizer] = all_made();
  const std::lock_guard lock(mutex);
  const auto is_gone = [](const auto& object) { return object.expired(); };
  for (auto& [key, made] : by_optimizer) {
    std::erase_if(made.steps, is_gone);
    std::erase_if(made.schedulers, is_gone);
  }
  std::erase_if(by_optimizer, [](const auto& entry) {
    return entry.second.steps.empty() && entry.second.schedulers.empty();
  });
  work(by_optimizer[&optimizer]);
}

} // namespace

void note_prepared(
    const torch::optim::Optimizer& optimizer,
    const std::shared_ptr<OptimizerStep>& step) {
  with_made(optimizer, [&](Made& made) {
    made.steps.push_back(step);
    for (const auto& scheduler : made.schedulers) {
      if (const auto living = scheduler.lock()) {
        step->add_scheduler(living);
      }
    }
  });
}

void note_scheduler(
    const torch::optim::Optimizer& optimizer,
    const std::shared_ptr<Stateful>& scheduler) {
  with_made(optimizer, [&](Made& made) {
    made.schedulers.push_back(scheduler);
    for (const auto& step : made.steps) {
      if (const auto living = step.lock()) {
        living->add_scheduler(scheduler);
      }
    }
  });
}

PreparedOptimizer::PreparedOptimizer(
    torch::optim::Optimizer& optimizer,
    std::shared_ptr<OptimizerStep> step)
    : optimizer_(&optimizer), step_(std::move(step)) {}

PreparedOptimizer::operator torch::optim::Optimizer&() {
  return *optimizer_;
}

void PreparedOptimizer::step() {
  step_->step();
}
bool PreparedOptimizer::did_step() const {
  return step_->did_step();
}
bool PreparedOptimizer::step_was_skipped() const {
  return step_->was_skipped();
}
void PreparedOptimizer::zero_grad(bool set_to_none) {
  step_->zero_grad(set_to_none ? Zeroing::kDrop : Zeroing::kFill);
}

} // namespace accelerate
