// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>

#include "accelerate/optimizer.h"
#include "training/optim/prepared_optimizers.h"

namespace accelerate {
namespace {

/// The prepared step and the schedulers of one optimizer.
struct PreparedObjects {
  std::vector<std::weak_ptr<OptimizerStep>> steps;
  std::vector<std::weak_ptr<Stateful>> schedulers;
};

struct PreparedRegistry {
  std::mutex mutex;
  std::map<const torch::optim::Optimizer*, PreparedObjects> by_optimizer;
};

PreparedRegistry& prepared_registry() {
  static auto* all = new PreparedRegistry;
  return *all;
}

/// Steps and schedulers refer to their optimizer, which therefore outlives
/// them. So an entry in use never has the address of another optimizer.
template <class Work>
void with_prepared(const torch::optim::Optimizer& optimizer, Work&& work) {
  auto& [mutex, by_optimizer] = prepared_registry();
  const std::lock_guard lock(mutex);
  const auto is_gone = [](const auto& object) { return object.expired(); };
  for (auto& [key, prepared] : by_optimizer) {
    std::erase_if(prepared.steps, is_gone);
    std::erase_if(prepared.schedulers, is_gone);
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
  with_prepared(optimizer, [&](PreparedObjects& prepared) {
    prepared.steps.push_back(step);
    for (const auto& scheduler : prepared.schedulers) {
      if (const auto living = scheduler.lock()) {
        step->add_scheduler(living);
      }
    }
  });
}

void note_scheduler(
    const torch::optim::Optimizer& optimizer,
    const std::shared_ptr<Stateful>& scheduler) {
  with_prepared(optimizer, [&](PreparedObjects& prepared) {
    prepared.schedulers.push_back(scheduler);
    for (const auto& step : prepared.steps) {
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
