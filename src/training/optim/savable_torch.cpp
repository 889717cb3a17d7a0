// SPDX-License-Identifier: Apache-2.0
// Names the optimizer state of torch::optim.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "training/optim/fields.h"
#include "training/optim/savable.h"

namespace accelerate::optim {

template <class Options>
struct TorchAdamFields {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr());
    visit("betas", self.betas());
    visit("eps", self.eps());
    visit("weight_decay", self.weight_decay());
    visit("amsgrad", self.amsgrad());
  }
};
template <>
struct Fields<torch::optim::AdamOptions>
    : TorchAdamFields<torch::optim::AdamOptions> {};
template <>
struct Fields<torch::optim::AdamWOptions>
    : TorchAdamFields<torch::optim::AdamWOptions> {};

template <class State>
struct TorchAdamStateFields {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("step", self.step());
    visit("exp_avg", self.exp_avg(), StateShape::kParameter);
    visit("exp_avg_sq", self.exp_avg_sq(), StateShape::kParameter);
    visit(
        "max_exp_avg_sq",
        self.max_exp_avg_sq(),
        StateShape::kParameter,
        Presence::kSometimes);
  }
};
template <>
struct Fields<torch::optim::AdamParamState>
    : TorchAdamStateFields<torch::optim::AdamParamState> {};
template <>
struct Fields<torch::optim::AdamWParamState>
    : TorchAdamStateFields<torch::optim::AdamWParamState> {};

template <>
struct Fields<torch::optim::SGDOptions> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr());
    visit("momentum", self.momentum());
    visit("dampening", self.dampening());
    visit("weight_decay", self.weight_decay());
    visit("nesterov", self.nesterov());
  }
};
template <>
struct Fields<torch::optim::SGDParamState> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(
        "momentum_buffer",
        self.momentum_buffer(),
        StateShape::kParameter,
        Presence::kSometimes);
  }
};

template <>
struct Fields<torch::optim::RMSpropOptions> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr());
    visit("alpha", self.alpha());
    visit("eps", self.eps());
    visit("weight_decay", self.weight_decay());
    visit("momentum", self.momentum());
    visit("centered", self.centered());
  }
};
template <>
struct Fields<torch::optim::RMSpropParamState> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    constexpr auto kShape = StateShape::kParameter;
    constexpr auto kSometimes = Presence::kSometimes;
    visit("step", self.step());
    visit("square_avg", self.square_avg(), kShape);
    visit("momentum_buffer", self.momentum_buffer(), kShape, kSometimes);
    visit("grad_avg", self.grad_avg(), kShape, kSometimes);
  }
};

template <>
struct Fields<torch::optim::AdagradOptions> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("lr", self.lr());
    visit("lr_decay", self.lr_decay());
    visit("weight_decay", self.weight_decay());
    visit("initial_accumulator_value", self.initial_accumulator_value());
    visit("eps", self.eps());
  }
};
template <>
struct Fields<torch::optim::AdagradParamState> {
  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit("step", self.step());
    visit("sum", self.sum(), StateShape::kParameter);
  }
};

namespace {

template <class Options, class State>
class SavableTorchOptimizer final : public SavableOptimizer {
 public:
  SavableTorchOptimizer(torch::optim::Optimizer& optimizer, std::string kind)
      : optimizer_(optimizer), kind_(std::move(kind)) {}

  std::string kind() const override { return kind_; }
  StateDict group_state(size_t group) const override {
    return write_fields(std::as_const(options(group)));
  }
  void load_group_state(size_t group, const StateDict& state) override {
    read_fields(options(group), state);
  }
  StateDict parameter_state(const at::Tensor& parameter) const override {
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    return found == optimizer_.state().end()
               ? StateDict()
               : write_fields(static_cast<const State&>(*found->second));
  }
  void load_parameter_state(const at::Tensor& parameter, const StateDict& state)
      override {
    auto loaded = std::make_unique<State>();
    read_fields(*loaded, state, parameter, parameter_state(parameter));
    optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(loaded);
  }

 private:
  Options& options(size_t group) const {
    return static_cast<Options&>(optimizer_.param_groups().at(group).options());
  }

  torch::optim::Optimizer& optimizer_;
  std::string kind_;
};

template <class Optimizer, class Options, class State>
std::shared_ptr<SavableOptimizer> adapt(
    torch::optim::Optimizer& optimizer,
    const char* kind) {
  if (dynamic_cast<Optimizer*>(&optimizer) == nullptr) {
    return nullptr;
  }
  return std::make_shared<SavableTorchOptimizer<Options, State>>(
      optimizer, kind);
}

} // namespace
} // namespace accelerate::optim

namespace accelerate {

std::shared_ptr<SavableOptimizer> savable(torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  using optim::adapt;
  if (auto* own = dynamic_cast<SavableOptimizer*>(&optimizer)) {
    return {std::shared_ptr<void>(), own};
  }
  using Adapter = std::shared_ptr<SavableOptimizer> (*)(
      Optimizer & optimizer, const char* kind);
  constexpr std::pair<Adapter, const char*> kAdapters[] = {
      {&adapt<Adam, AdamOptions, AdamParamState>, "torch::optim::Adam"},
      {&adapt<AdamW, AdamWOptions, AdamWParamState>, "torch::optim::AdamW"},
      {&adapt<SGD, SGDOptions, SGDParamState>, "torch::optim::SGD"},
      {&adapt<RMSprop, RMSpropOptions, RMSpropParamState>,
       "torch::optim::RMSprop"},
      {&adapt<Adagrad, AdagradOptions, AdagradParamState>,
       "torch::optim::Adagrad"},
  };
  for (const auto& [adapter, kind] : kAdapters) {
    if (auto adapted = adapter(optimizer, kind)) {
      return adapted;
    }
  }
  return nullptr;
}

} // namespace accelerate
