// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>

#include "accelerate/optimizer.h"
#include "optim/prepared_optimizers.h"

namespace accelerate {
namespace {

/// What was made of one optimizer.
struct Made {
  std::vector<std::weak_ptr<OptimizerStep>> steps;
  std::vector<std::weak_ptr<Stateful>> schedulers;
};

/// Both hold the optimizer, so that its address is not another's.
template <class Work>
void with_made(const torch::optim::Optimizer& optimizer, Work&& work) {
  static std::mutex mutex;
  static auto* all = new std::map<const torch::optim::Optimizer*, Made>;
  const auto is_gone = [](const auto& object) { return object.expired(); };
  const std::lock_guard lock(mutex);
  for (auto& [key, made] : *all) {
    std::erase_if(made.steps, is_gone);
    std::erase_if(made.schedulers, is_gone);
  }
  std::erase_if(*all, [](const auto& entry) {
    return entry.second.steps.empty() && entry.second.schedulers.empty();
  });
  work((*all)[&optimizer]);
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
