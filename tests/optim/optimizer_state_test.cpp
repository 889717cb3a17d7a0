// SPDX-License-Identifier: Apache-2.0
// Ten steps, save, load into a new optimizer, ten more: bit-identical to twenty
// steps.
#include "accelerate/optim/optimizer_state.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "optim/reference.h"
#include "training/optim/savable.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

/// Two names of which one is a prefix of the other: "layer" and "layer.weight".
struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width = 3) : layer(width, 2) {
    register_module("layer", layer);
    extra = register_parameter("layer_", fractions({2, 3, 2}, 5, 11));
    torch::NoGradGuard no_grad;
    layer->weight.copy_(fractions({2, width}, 1, 29));
    layer->bias.copy_(fractions({2}, 2, 31));
  }
  std::vector<Tensor> matrices() const { return {layer->weight}; }
  torch::nn::Linear layer;
  Tensor extra;
};

using SavedMaker = std::function<
    std::unique_ptr<torch::optim::Optimizer>(NetImpl&, double lr)>;
struct SavedCase {
  std::string name;
  SavedMaker make;
};
std::ostream& operator<<(std::ostream& out, const SavedCase& c) {
  return out << c.name;
}

template <class Optimizer, class Options>
SavedMaker with(Options options) {
  return [options](NetImpl& net, double lr) {
    Options mine = options;
    if constexpr (requires { mine.lr = lr; }) {
      mine.lr = lr;
    } else {
      mine.lr(lr);
    }
    return std::make_unique<Optimizer>(
        std::is_same_v<Optimizer, optim::Muon> ? net.matrices()
                                               : net.parameters(),
        mine);
  };
}

const std::vector<SavedCase>& saved_cases() {
  namespace t = torch::optim;
  static const std::vector<SavedCase> kSavedCases = {
      {"AdamW", with<optim::AdamW>(optim::AdamWOptions{.amsgrad = true})},
      {"Adam", with<optim::Adam>(optim::AdamOptions{})},
      {"SGD", with<optim::SGD>(optim::SGDOptions{.momentum = 0.9})},
      {"PlainSGD", with<optim::SGD>(optim::SGDOptions{})},
      {"Adafactor", with<optim::Adafactor>(optim::AdafactorOptions{})},
      {"Lion", with<optim::Lion>(optim::LionOptions{.weight_decay = 0.1})},
      {"Muon", with<optim::Muon>(optim::MuonOptions{})},
      {"TorchAdam", with<t::Adam>(t::AdamOptions().amsgrad(true))},
      {"TorchAdamW", with<t::AdamW>(t::AdamWOptions())},
      {"TorchSGD", with<t::SGD>(t::SGDOptions(1).momentum(0.9))},
      {"TorchRMSprop",
       with<t::RMSprop>(t::RMSpropOptions().momentum(0.9).centered(true))},
      {"TorchAdagrad", with<t::Adagrad>(t::AdagradOptions().lr_decay(0.1))},
  };
  return kSavedCases;
}

/// The bias has gradients only from step 4 on.
void step(
    NetImpl& net,
    torch::optim::Optimizer& optimizer,
    int first,
    int last) {
  for (int step = first; step <= last; ++step) {
    int64_t salt = 0;
    for (auto& item : net.named_parameters()) {
      const bool is_late = item.key() == "layer.bias" && step < 4;
      item.value().mutable_grad() =
          is_late
              ? Tensor()
              : fractions(item.value().sizes(), 101 * step + ++salt, 37 + step);
    }
    optimizer.step();
  }
}

class OptimizerState : public ::testing::TestWithParam<SavedCase> {};
INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    OptimizerState,
    ::testing::ValuesIn(saved_cases()),
    [](const auto& info) { return info.param.name; });

TEST_P(OptimizerState, ResumesExactly) {
  for (const int stop : {2, 10}) {
    NetImpl whole;
    auto optimizer = GetParam().make(whole, 1e-2);
    step(whole, *optimizer, 1, 20);

    NetImpl first;
    auto before = GetParam().make(first, 1e-2);
    step(first, *before, 1, stop);
    const StateDict state = optimizer_state(*before, named_parameters(first));

    NetImpl second;
    // Another learning rate, which loading replaces.
    auto after = GetParam().make(second, 5);
    {
      torch::NoGradGuard no_grad;
      for (auto& item : second.named_parameters()) {
        item.value().copy_(first.named_parameters()[item.key()]);
      }
    }
    load_optimizer_state(*after, named_parameters(second), state);
    // The copy does not change with the first one's later steps.
    step(first, *before, stop + 1, stop + 3);
    step(second, *after, stop + 1, 20);
    for (const auto& item : whole.named_parameters()) {
      EXPECT_TRUE(item.value().equal(second.named_parameters()[item.key()]))
          << item.key();
    }
  }
}

// LibTorch's parameters() lists a tied weight once per name.
TEST(OptimizerState, HoldsATiedWeightThatIsListedTwice) {
  NetImpl net;
  net.register_parameter("tied", net.layer->weight);
  const NamedParameters names = named_parameters(net);
  optim::AdamW optimizer(net.parameters());
  step(net, optimizer, 1, 2);
  const StateDict state = optimizer_state(optimizer, names);
  optim::AdamW other(net.parameters());
  load_optimizer_state(other, names, state);
  const StateDict loaded = optimizer_state(other, names);
  const char* key = "state.tied.exp_avg";
  EXPECT_TRUE(loaded.get<Tensor>(key).equal(state.get<Tensor>(key)));
}

TEST(OptimizerState, LoadsIntoItsOwnMemoryUnlessSomebodyElseHasIt) {
  NetImpl net;
  const NamedParameters names = named_parameters(net);
  const char* key = "state.layer.weight.exp_avg";
  optim::AdamW source(net.parameters());
  step(net, source, 1, 2);
  const StateDict state = optimizer_state(source, names);
  const Tensor saved = state.get<Tensor>(key).clone();
  optim::AdamW optimizer(net.parameters());
  step(net, optimizer, 1, 5);
  const auto address = [&] {
    return optimizer_state(optimizer, names).get<Tensor>(key).data_ptr();
  };
  const void* own = address();
  load_optimizer_state(optimizer, names, state);
  EXPECT_EQ(address(), own);
  const Tensor held = optimizer_state(optimizer, names).get<Tensor>(key);
  EXPECT_TRUE(held.equal(saved));
  step(net, optimizer, 6, 6);
  const Tensor before = held.clone();
  load_optimizer_state(optimizer, names, state);
  EXPECT_TRUE(held.equal(before));
  EXPECT_NE(address(), own);
  const StateDict loaded = optimizer_state(optimizer, names);
  EXPECT_TRUE(loaded.get<Tensor>(key).equal(saved));
  // Loading its own state changes nothing.
  load_optimizer_state(optimizer, names, loaded);
  EXPECT_TRUE(optimizer_state(optimizer, names).get<Tensor>(key).equal(saved));
}

TEST(OptimizerState, HasReadableNames) {
  NetImpl net;
  optim::AdamW optimizer(
      optim::no_decay_groups(net), {.lr = 0.5, .weight_decay = 0.25});
  step(net, optimizer, 1, 4);
  const StateDict state = optimizer_state(optimizer, named_parameters(net));
  EXPECT_EQ(state.get<std::string>("kind"), "AdamW");
  EXPECT_EQ(state.get<double>("groups.0.lr"), 0.5);
  EXPECT_EQ(state.get<double>("groups.0.weight_decay"), 0.25);
  EXPECT_EQ(state.get<double>("groups.1.weight_decay"), 0);
  EXPECT_EQ(state.get<double>("groups.1.betas.1"), 0.999);
  EXPECT_EQ(state.get<std::string>("groups.1.parameters.0"), "layer.bias");
  EXPECT_EQ(state.get<Tensor>("state.layer.bias.step").item<float>(), 1);
  EXPECT_EQ(state.get<Tensor>("state.layer.weight.step").item<float>(), 4);
  EXPECT_EQ(
      state.get<Tensor>("state.layer.weight.exp_avg").sizes(),
      net.layer->weight.sizes());
  // The names of an engine's parameter set also work.
  const ParameterSet set = {
      .names = {"a", "b", "c"},
      .parameters = {net.extra, net.layer->weight, net.layer->bias}};
  EXPECT_EQ(
      optimizer_state(optimizer, named_parameters(set))
          .get<Tensor>("state.c.step")
          .item<float>(),
      1);
}

TEST(OptimizerState, ReportsMismatches) {
  NetImpl net;
  const NamedParameters names = named_parameters(net);
  optim::AdamW optimizer(net.parameters());
  step(net, optimizer, 1, 1);
  const StateDict state = optimizer_state(optimizer, names);
  const auto throws = [](const auto&... texts) {
    return ThrowsMessage<UsageError>(AllOf(HasSubstr(texts)...));
  };
  const auto loading = [&state](auto& into, const NamedParameters& names) {
    return [&] { load_optimizer_state(into, names, state); };
  };
  optim::SGD sgd(net.parameters());
  EXPECT_THAT(
      loading(sgd, names),
      throws("The saved state belongs to AdamW, but the optimizer is SGD"));
  optim::AdamW grouped(optim::no_decay_groups(net));
  EXPECT_THAT(
      loading(grouped, names),
      throws("has 1 parameter groups, but the optimizer has 2"));
  auto renamed = names;
  renamed[0].first = "other";
  EXPECT_THAT(
      loading(optimizer, renamed),
      throws("Parameter 'other' of group 0 is not in the saved group"));
  optim::AdamW fewer(net.matrices());
  EXPECT_THAT(
      loading(fewer, names),
      throws(
          "The saved group 0 has a parameter",
          "that the optimizer does not have"));
  EXPECT_THAT(
      loading(optimizer, {}),
      throws(
          "Parameter 0 of group 0, of shape", "is not in the list of names"));
  NetImpl wide(5);
  optim::AdamW wider(wide.parameters());
  EXPECT_THAT(
      loading(wider, named_parameters(wide)),
      throws(
          "has shape [2, 3], expected [2, 5]", "(parameter 'layer.weight')"));
  torch::optim::LBFGS lbfgs(net.parameters());
  EXPECT_THAT(
      [&] { optimizer_state(lbfgs, names); },
      throws("[optimizer_state]", "LBFGS", "SavableOptimizer"));
}

} // namespace
} // namespace accelerate::testing
