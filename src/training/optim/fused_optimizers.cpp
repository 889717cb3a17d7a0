// SPDX-License-Identifier: Apache-2.0
// AdamW, Adam and SGD, with one fused operator per group.
#include "training/kernels/adam.h"
#include "training/optim/optimizer_of.h"

namespace accelerate::optim {

struct AdamState : torch::optim::OptimizerCloneableParamState<AdamState> {
  /// A float on the parameter's device, as the operator requires.
  at::Tensor step;
  at::Tensor exp_avg, exp_avg_sq;
  /// With AMSGrad only.
  at::Tensor max_exp_avg_sq;
};

template <>
struct Fields<AdamState> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("step", self.step, StateShape::kScalar);
    visit("exp_avg", self.exp_avg, StateShape::kParameter);
    visit("exp_avg_sq", self.exp_avg_sq, StateShape::kParameter);
    visit(
        "max_exp_avg_sq",
        self.max_exp_avg_sq,
        StateShape::kParameter,
        Presence::kSometimes);
  }
};

template <class Options>
struct AdamFields {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr);
    visit("betas", self.betas);
    visit("eps", self.eps);
    visit("weight_decay", self.weight_decay);
    visit("amsgrad", self.amsgrad);
    visit("maximize", self.maximize);
  }
};
template <>
struct Fields<AdamWOptions> : AdamFields<AdamWOptions> {};
template <>
struct Fields<AdamOptions> : AdamFields<AdamOptions> {};

template <>
struct Fields<SGDOptions> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr);
    visit("momentum", self.momentum);
    visit("dampening", self.dampening);
    visit("weight_decay", self.weight_decay);
    visit("nesterov", self.nesterov);
    visit("maximize", self.maximize);
  }
};

namespace {

template <class Options>
void check_adam(const Options& options) {
  check_lr_and_decay(options);
  check_betas(options);
  check_option(
      options.eps >= 0, Options::kName, "eps", options.eps, "0 or more");
}

/// The parallel lists that the Adam operators accept.
struct AdamLists {
  void reserve(size_t size) {
    for (auto* list :
         {&parameters, &gradients, &exp_avgs, &exp_avg_sqs, &steps}) {
      list->reserve(size);
    }
  }
  void add(
      const at::Tensor& parameter,
      AdamState& state,
      bool amsgrad,
      const at::Tensor& copy) {
    if (!state.step.defined()) {
      state.exp_avg = zeros_for(parameter);
      state.exp_avg_sq = zeros_for(parameter);
      state.step = at::zeros(
          {}, at::TensorOptions(at::kFloat).device(parameter.device()));
    }
    if (amsgrad && !state.max_exp_avg_sq.defined()) {
      state.max_exp_avg_sq = zeros_for(parameter);
    }
    parameters.push_back(parameter);
    gradients.push_back(aligned_gradient(parameter));
    exp_avgs.push_back(state.exp_avg);
    exp_avg_sqs.push_back(state.exp_avg_sq);
    steps.push_back(state.step);
    if (amsgrad) {
      max_exp_avg_sqs.push_back(state.max_exp_avg_sq);
    }
    if (copy.defined()) {
      copies.push_back(copy);
    }
  }
  void count_step() {
    if (!steps[0].is_cpu()) {
      at::_foreach_add_(steps, 1);
      return;
    }
    for (const auto& step : steps) {
      *step.mutable_data_ptr<float>() += 1;
    }
  }
  /// Undoes the count of a step that the device has skipped.
  void uncount_step(const at::Tensor& found_inf) {
    at::_foreach_sub_(
        steps, std::vector<at::Tensor>(steps.size(), found_inf.reshape({})));
  }
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs;
  std::vector<at::Tensor> steps;
  std::vector<at::Tensor> copies;
};

/// The scalars of a step, on the device of these parameters.
struct DeviceScalars {
  DeviceScalars(
      const at::Tensor& found_inf,
      const at::Tensor& learning_rate,
      c10::Device device) {
    if (found_inf.defined()) {
      overflow = found_inf.to(device);
    }
    if (learning_rate.defined()) {
      rate = learning_rate.to(device);
    }
  }
  /// Calls `work` with the learning rate on the device, or else on the host.
  template <class Work>
  void with_rate(double host, Work&& work) const {
    if (rate) {
      work(*rate);
    } else {
      work(host);
    }
  }
  std::optional<at::Tensor> overflow;
  std::optional<at::Tensor> rate;
};

template <class Options>
void call_adam(
    const Options& options,
    AdamLists& lists,
    const DeviceScalars& scalars,
    const std::optional<at::Tensor>& gradient_factor) {
  if (lists.parameters.empty()) {
    return;
  }
  lists.count_step();
  kernels::adam_step(
      {.parameters = lists.parameters,
       .gradients = lists.gradients,
       .exp_avgs = lists.exp_avgs,
       .exp_avg_sqs = lists.exp_avg_sqs,
       .max_exp_avg_sqs = lists.max_exp_avg_sqs,
       .steps = lists.steps,
       .copies = lists.copies},
      {.lr = options.lr,
       .beta1 = options.betas.first,
       .beta2 = options.betas.second,
       .weight_decay = options.weight_decay,
       .eps = options.eps,
       .maximize = options.maximize,
       .is_decoupled = std::is_same_v<Options, AdamWOptions>},
      scalars.rate,
      scalars.overflow,
      gradient_factor);
  if (scalars.overflow) {
    lists.uncount_step(*scalars.overflow);
  }
}

void call_sgd(
    const SGDOptions& options,
    const std::vector<at::Tensor>& parameters,
    const std::vector<at::Tensor>& gradients,
    const std::vector<at::Tensor>& buffers,
    bool is_first_step,
    const DeviceScalars& scalars) {
  if (parameters.empty()) {
    return;
  }
  scalars.with_rate(options.lr, [&](const auto& rate) {
    at::_fused_sgd_(
        parameters,
        gradients,
        buffers,
        options.weight_decay,
        options.momentum,
        rate,
        options.dampening,
        options.nesterov,
        options.maximize,
        is_first_step,
        std::nullopt,
        scalars.overflow);
  });
}

} // namespace

template <>
void check_options(const AdamWOptions& options) {
  check_adam(options);
}
template <>
void check_options(const AdamOptions& options) {
  check_adam(options);
}
template <>
void check_options(const SGDOptions& options) {
  check_lr_and_decay(options);
  check_option(
      options.momentum >= 0, "SGD", "momentum", options.momentum, "0 or more");
  check_option(
      !options.nesterov || options.momentum > 0,
      "SGD",
      "momentum",
      options.momentum,
      "more than 0 with nesterov");
  check_option(
      !options.nesterov || options.dampening == 0,
      "SGD",
      "dampening",
      options.dampening,
      "0 with nesterov");
}

template class OptimizerOf<AdamWOptions, AdamState>;
template class OptimizerOf<AdamOptions, AdamState>;
template class OptimizerOf<SGDOptions, MomentumState>;

template <class Options>
void AdamOf<Options>::update(
    const Options& options,
    const std::vector<at::Tensor>& parameters) {
  // First the parameters with a reduced-precision copy, grouped by its origin,
  // then those without a copy.
  const auto& copies = this->copies();
  std::vector<AdamLists> lists(copies.size() + 1);
  for (const auto& parameter : parameters) {
    at::Tensor copy;
    size_t index = 0;
    for (; index < copies.size(); ++index) {
      const auto& weights = copies[index]->weights;
      const auto found = weights.find(parameter.unsafeGetTensorImpl());
      if (found != weights.end()) {
        copy = found->second;
        break;
      }
    }
    auto& list = lists[index];
    if (list.parameters.empty()) {
      list.reserve(parameters.size());
    }
    list.add(parameter, this->state_of(parameter), options.amsgrad, copy);
  }
  const auto device = parameters[0].device();
  const DeviceScalars scalars(this->found_inf(), this->learning_rate(), device);
  for (size_t i = 0; i < lists.size(); ++i) {
    std::optional<at::Tensor> factor;
    if (i < copies.size() && copies[i]->gradient_factor.defined()) {
      factor = copies[i]->gradient_factor.to(device);
    }
    call_adam(options, lists[i], scalars, factor);
  }
}
template class AdamOf<AdamWOptions>;
template class AdamOf<AdamOptions>;

void SGD::update(
    const SGDOptions& options,
    const std::vector<at::Tensor>& parameters) {
  // [0]: parameters that already have a buffer. [1]: new parameters, whose
  // buffer the operator fills.
  std::vector<at::Tensor> chosen[2], gradients[2], buffers[2];
  for (const auto& parameter : parameters) {
    bool starts = false;
    if (options.momentum != 0) {
      at::Tensor& buffer = state_of(parameter).momentum_buffer;
      starts = !buffer.defined();
      if (starts) {
        buffer = zeros_for(parameter);
      }
      buffers[starts].push_back(buffer);
    }
    chosen[starts].push_back(parameter);
    gradients[starts].push_back(aligned_gradient(parameter));
  }
  const DeviceScalars scalars(
      found_inf(), learning_rate(), parameters[0].device());
  for (const bool starts : {false, true}) {
    call_sgd(
        options,
        chosen[starts],
        gradients[starts],
        buffers[starts],
        starts,
        scalars);
  }
}

bool SGD::takes_scalars() const {
  for (size_t group = 0; group < param_groups().size(); ++group) {
    if (options(group).momentum != 0 && options(group).dampening != 0) {
      return false;
    }
  }
  return true;
}

} // namespace accelerate::optim
