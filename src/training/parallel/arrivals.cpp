// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/arrivals.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "accelerate/error.h"
#include "core/observe/rank_record.h"
#include "training/parallel/carried_errors.h"

namespace accelerate {

struct Arrivals::Counts {
  std::function<void(size_t)> on_arrival;
  std::atomic<int64_t> num_arrived = 0;
  std::atomic<bool> is_known = true;
  std::atomic<int64_t> num_at_end = 0;
  /// The record of the training thread. Valid while that thread waits in the
  /// backward.
  std::atomic<RankRecord*> trains = nullptr;

  struct Hook final : torch::autograd::FunctionPostHook {
    Hook(std::shared_ptr<Counts> counts, size_t index)
        : counts(std::move(counts)), index(index) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& outputs,
        const torch::autograd::variable_list& /*inputs*/) override {
      try {
        counts->on_arrival(index);
      } catch (const Error&) {
        throw_carried();
      }
      RankRecord::of_this_thread().note_gradient();
      const auto num_before =
          counts->num_arrived.fetch_add(1, std::memory_order_relaxed);
      if (num_before + 1 == counts->num_at_end) {
        counts->trains.load()->note_last_gradient();
      }
      return outputs;
    }
    void compiled_args(
        torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const override {
      counts->is_known = false;
    }
    std::shared_ptr<Counts> counts;
    size_t index;
  };
};

struct Arrivals::HookedAccumulator {
  // A std::shared_ptr up to torch 2.12, and a c10::intrusive_ptr since 2.13.
  decltype(torch::autograd::impl::grad_accumulator({})) node;
  uintptr_t key;
};

Arrivals::Arrivals(
    const std::vector<at::Tensor>& parameters,
    std::function<void(size_t)> on_arrival)
    : counts_(std::make_shared<Counts>()) {
  counts_->on_arrival = std::move(on_arrival);
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
    const auto key =
        accumulator->add_post_hook(std::make_unique<Counts::Hook>(counts_, i));
    hooked_.push_back({std::move(accumulator), key});
  }
}

Arrivals::~Arrivals() {
  for (const auto& hooked : hooked_) {
    hooked.node->del_post_hook(hooked.key);
  }
}

int64_t Arrivals::num_arrived() const {
  return counts_->num_arrived.load(std::memory_order_relaxed);
}

int64_t Arrivals::begin_backward() {
  const auto num_before = num_arrived();
  counts_->trains = &RankRecord::of_this_thread();
  counts_->num_at_end = num_before + static_cast<int64_t>(hooked_.size());
  return num_before;
}

bool Arrivals::is_hooked(size_t index, const at::Tensor& parameter) const {
  return torch::autograd::impl::try_get_grad_accumulator(parameter) ==
         hooked_[index].node;
}

bool Arrivals::is_known() const {
  return counts_->is_known;
}

} // namespace accelerate
