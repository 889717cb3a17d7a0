// SPDX-License-Identifier: Apache-2.0
#include "training/optim/optimizer_of.h"

namespace accelerate::optim {

struct LionState : torch::optim::OptimizerCloneableParamState<LionState> {
  at::Tensor exp_avg;
};

template <>
struct Fields<LionState> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("exp_avg", self.exp_avg, StateShape::kParameter);
  }
};

template <>
struct Fields<LionOptions> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr);
    visit("betas", self.betas);
    visit("weight_decay", self.weight_decay);
    visit("decoupled_weight_decay", self.decoupled_weight_decay);
  }
};

template <>
void check_options(const LionOptions& options) {
  check_lr_and_decay(options);
  check_betas(options, /*one_is_allowed=*/true);
}

template class OptimizerOf<LionOptions, LionState>;

void Lion::update(
    const LionOptions& options,
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients, exp_avgs;
  gradients.reserve(parameters.size());
  exp_avgs.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    at::Tensor& exp_avg = state_of(parameter).exp_avg;
    if (!exp_avg.defined()) {
      exp_avg = zeros_for(parameter);
    }
    gradients.push_back(parameter.grad());
    exp_avgs.push_back(exp_avg);
  }
  const auto [beta1, beta2] = options.betas;
  const double decay = options.decoupled_weight_decay
                           ? options.weight_decay / defaults().get_lr()
                           : options.weight_decay;
  at::_foreach_mul_(parameters, 1 - options.lr * decay);
  auto updates = at::_foreach_mul(exp_avgs, beta1);
  at::_foreach_add_(updates, gradients, 1 - beta1);
  at::_foreach_sign_(updates);
  at::_foreach_add_(parameters, updates, -options.lr);
  at::_foreach_mul_(exp_avgs, beta2);
  at::_foreach_add_(exp_avgs, gradients, 1 - beta2);
}

} // namespace accelerate::optim
