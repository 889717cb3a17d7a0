// SPDX-License-Identifier: Apache-2.0
// Our optimizers follow the trajectories of PyTorch's (Lion: lion-pytorch's),
// alone and on several ranks. Expected values:
// tools/make_optimizer_reference.py.
#include "accelerate/optimizers.h"

#include <ATen/Version.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "optim/reference.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

const std::vector<std::vector<int64_t>> kShapes =
    {{6, 4}, {6}, {4}, {2, 3, 4}, {3, 8}};
constexpr size_t kLate = 2;

struct WeightsImpl : torch::nn::Module {
  WeightsImpl() {
    for (size_t k = 0; k < kShapes.size(); ++k) {
      all.push_back(register_parameter(
          "p" + std::to_string(k),
          fractions(kShapes[k], 53 * static_cast<int64_t>(k) + 7, 29)));
    }
  }
  /// Its gradient by parameter k is `gradients[k]`.
  Tensor forward(const std::vector<Tensor>& gradients) {
    Tensor sum = torch::zeros({});
    for (size_t k = 0; k < all.size(); ++k) {
      sum = sum + (all[k] * gradients[k]).sum();
    }
    return sum;
  }
  Tensor flat() const {
    std::vector<Tensor> parts;
    for (const auto& weight : all) {
      parts.push_back(weight.detach().flatten());
    }
    return torch::cat(parts);
  }
  std::vector<Tensor> matrices() const { return {all[0], all[4]}; }
  std::vector<Tensor> all;
};
TORCH_MODULE(Weights);

Tensor gradient(size_t k, int64_t step) {
  return fractions(
      kShapes[k], 101 * step + 13 * static_cast<int64_t>(k), 37 + 7 * step);
}

using Maker =
    std::function<std::unique_ptr<torch::optim::Optimizer>(WeightsImpl&)>;

template <class Optimizer, class Options>
Maker plain(Options options) {
  return [options](WeightsImpl& weights) {
    return std::make_unique<Optimizer>(
        std::is_same_v<Optimizer, optim::Muon> ? weights.matrices()
                                               : weights.all,
        options);
  };
}

template <class Optimizer, class Options>
Maker grouped(Options options) {
  return [options](WeightsImpl& weights) {
    const auto groups = optim::split_groups(
        weights,
        [](const auto&, const Tensor& weight) { return weight.dim() < 2; },
        {.lr = 1e-3, .weight_decay = 0.0});
    return std::make_unique<Optimizer>(groups, options);
  };
}

struct Case {
  std::string name;
  Maker make;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

const std::vector<Case>& cases() {
  using namespace optim;
  using A = AdamWOptions;
  using L2 = AdamOptions;
  using S = SGDOptions;
  using F = AdafactorOptions;
  using L = LionOptions;
  using M = MuonOptions;
  static const std::vector<Case> kCases = {
      {"adamw", plain<AdamW>(A{.lr = 1e-2, .weight_decay = 0.1})},
      {"adamw_plain",
       plain<AdamW>(A{.lr = 1e-2, .betas = {0.8, 0.95}, .weight_decay = 0})},
      {"adamw_amsgrad", plain<AdamW>(A{.lr = 1e-2, .amsgrad = true})},
      {"adamw_maximize",
       plain<AdamW>(A{.lr = 1e-2, .eps = 1e-3, .maximize = true})},
      {"adamw_groups", grouped<AdamW>(A{.lr = 1e-2, .weight_decay = 0.1})},
      {"adam", plain<Adam>(L2{.lr = 1e-2})},
      {"adam_decay", plain<Adam>(L2{.lr = 1e-2, .weight_decay = 0.1})},
      {"adam_amsgrad",
       plain<Adam>(L2{.lr = 1e-2, .weight_decay = 0.1, .amsgrad = true})},
      {"sgd", plain<SGD>(S{.lr = 1e-2})},
      {"sgd_decay", plain<SGD>(S{.lr = 1e-2, .weight_decay = 0.1})},
      {"sgd_momentum",
       plain<SGD>(S{.lr = 1e-2, .momentum = 0.9, .dampening = 0.5})},
      {"sgd_nesterov",
       plain<SGD>(
           S{.lr = 1e-2,
             .momentum = 0.9,
             .weight_decay = 0.1,
             .nesterov = true})},
      {"sgd_maximize",
       plain<SGD>(S{.lr = 1e-2, .momentum = 0.9, .maximize = true})},
      {"sgd_groups",
       grouped<SGD>(S{.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1})},
      {"adafactor", plain<Adafactor>(F{.lr = 1e-2})},
      {"adafactor_decay", plain<Adafactor>(F{.lr = 1e-2, .weight_decay = 0.1})},
      {"adafactor_clipped",
       plain<Adafactor>(
           F{.lr = 0.3,
             .beta2_decay = -0.5,
             .eps1 = 1e-2,
             .eps2 = 1e-2,
             .d = 1.25,
             .maximize = true})},
      {"adafactor_groups",
       grouped<Adafactor>(F{.lr = 1e-2, .weight_decay = 0.1})},
      {"lion", plain<Lion>(L{.lr = 1e-2})},
      {"lion_decay", plain<Lion>(L{.lr = 1e-2, .weight_decay = 0.1})},
      {"lion_decoupled",
       plain<Lion>(
           L{.lr = 1e-2,
             .betas = {0.95, 0.98},
             .weight_decay = 1e-3,
             .decoupled_weight_decay = true})},
      {"lion_groups", grouped<Lion>(L{.lr = 1e-2, .weight_decay = 0.1})},
      {"muon", plain<Muon>(M{.lr = 1e-2})},
      {"muon_plain",
       plain<Muon>(M{.lr = 1e-2, .weight_decay = 0, .nesterov = false})},
      {"muon_match_rms",
       plain<Muon>(M{.lr = 1e-2, .adjust_lr = MuonAdjustLr::kMatchRmsAdamW})},
  };
  return kCases;
}

/// The same operators in the same order give the same bits, on a CPU with the
/// same vector instructions and the same release of torch. Elsewhere a fused
/// multiply may round differently: a few units in the last place of the largest
/// weight in each of 50 steps. Muon's products are in bfloat16, with a relative
/// precision of 1/256 of an update of 0.01 per step.
void expect_reference(const std::string& name, const Tensor& rows) {
  const Tensor expected = reference("optimizers", name);
  const bool is_same_machine =
      at::get_cpu_capability() ==
          reference_metadata("optimizers", "cpu_capability") &&
      reference_metadata("optimizers", "torch") == TORCH_VERSION;
  const double most = name.starts_with("muon") ? 5e-3 : 2e-6;
  const double largest = std::max(1.0, expected.abs().max().item<double>());
  const double got = (rows - expected).abs().max().item<double>();
  EXPECT_LE(got, is_same_machine ? 0.0 : most * largest) << name;
}

class Trajectory : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    Trajectory,
    ::testing::ValuesIn(cases()),
    [](const auto& info) { return info.param.name; });

/// Rank r's gradient has an exact offset, a multiple of 1/4, and the offsets
/// add up to zero: the mean over ranks equals the reference's gradient exactly.
TEST_P(Trajectory, IsThatOfThePythonOptimizerOnOneTwoAndFourRanks) {
  for (const int num_ranks : {1, 2, 4}) {
    run_ranks(num_ranks, [num_ranks](ProcessGroup group) {
      Accelerator accelerator({.cpu = true, .process_group = group});
      Weights model;
      auto raw = GetParam().make(*model);
      auto [net, optimizer] = accelerator.prepare(model, *raw);
      const double offset = (2 * group.rank() - (num_ranks - 1)) / 4.0;
      std::vector<Tensor> rows;
      for (int64_t step = 1; step <= 50; ++step) {
        std::vector<Tensor> gradients;
        for (size_t k = 0; k < kShapes.size(); ++k) {
          gradients.push_back(gradient(k, step) + offset);
        }
        accelerator.backward(net(gradients));
        optimizer.step();
        optimizer.zero_grad();
        if (step == 1 || step == 10 || step == 50) {
          rows.push_back(net->flat());
        }
      }
      expect_reference(GetParam().name, torch::stack(rows));
    });
  }
}

TEST(Optimizer, IgnoresParametersWithoutAGradient) {
  Weights model;
  optim::AdamW optimizer(model->all, {.lr = 1e-2});
  std::vector<Tensor> rows;
  for (int64_t step = 1; step <= 50; ++step) {
    for (size_t k = 0; k < kShapes.size(); ++k) {
      model->all[k].mutable_grad() =
          k == kLate && step <= 5 ? Tensor() : gradient(k, step);
    }
    optimizer.step();
    if (step == 1 || step == 10 || step == 50) {
      rows.push_back(model->flat());
    }
  }
  expect_reference("adamw_late", torch::stack(rows));
}

TEST(Optimizer, StartsTheMomentumOfALateParameterWithItsFirstGradient) {
  auto a = torch::zeros({2}, torch::requires_grad());
  auto b = torch::zeros({2}, torch::requires_grad());
  optim::SGD optimizer({a, b}, {.lr = 1, .momentum = 0.5});
  a.mutable_grad() = torch::ones({2});
  optimizer.step();
  b.mutable_grad() = torch::ones({2});
  optimizer.step();
  // a: 1, then 1 + 0.5 * 1 more. b: its first step.
  EXPECT_TRUE(a.equal(torch::full({2}, -2.5)));
  EXPECT_TRUE(b.equal(torch::full({2}, -1.0)));
}

TEST(Optimizer, TakesGradientsOfAnyMemoryLayout) {
  const auto make = [](const Tensor& gradient) {
    auto weight = torch::zeros({2, 3}, torch::requires_grad());
    weight.mutable_grad() = gradient;
    optim::AdamW({weight}, {.lr = 1, .eps = 10}).step();
    return weight.detach();
  };
  const auto dense = torch::arange(6.0).reshape({2, 3});
  EXPECT_TRUE(make(dense.t().contiguous().t()).equal(make(dense)));
  EXPECT_TRUE(make(torch::ones({1, 1}).expand({2, 3}))
                  .equal(make(torch::ones({2, 3}))));
}

TEST(Optimizer, StepsParametersOfSeveralTypesInOneGroup) {
  auto a = torch::ones({2}, torch::requires_grad());
  auto b = torch::ones({2}, torch::dtype(torch::kDouble).requires_grad(true));
  optim::SGD optimizer({a, b}, {.lr = 0.5});
  (a.sum() + b.sum()).backward();
  optimizer.step();
  EXPECT_TRUE(a.equal(torch::full({2}, 0.5)));
  EXPECT_TRUE(b.equal(torch::full({2}, 0.5, torch::kDouble)));
}

TEST(Optimizer, CallsAClosureWithGradients) {
  auto weight = torch::ones({1}, torch::requires_grad());
  optim::SGD optimizer({weight}, {.lr = 1});
  const torch::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    auto value = (weight * 3).sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), 3);
  EXPECT_EQ(weight.item<float>(), -2);
}

TEST(Optimizer, GivesItsOptionsPerGroup) {
  auto weight = torch::ones({1}, torch::requires_grad());
  optim::AdamW optimizer(
      {{.parameters = {weight}, .weight_decay = 0.5}},
      {.lr = 1, .betas = {0.5, 0.5}});
  EXPECT_EQ(optimizer.options().weight_decay, 0.5);
  EXPECT_EQ(optimizer.options().betas.first, 0.5);
  optimizer.param_groups()[0].options().set_lr(0.25);
  EXPECT_EQ(optimizer.options().lr, 0.25);
  optimizer.add_group({.parameters = {torch::ones({1})}, .lr = 7});
  EXPECT_EQ(optimizer.options(1).lr, 7);
  EXPECT_EQ(optimizer.options(1).weight_decay, 1e-2);
}

TEST(Optimizer, ReportsBadUseInOneLine) {
  auto weight = torch::ones({4}, torch::requires_grad());
  const auto throws = [](const auto&... texts) {
    return ThrowsMessage<UsageError>(AllOf(HasSubstr(texts)...));
  };
  EXPECT_THAT(
      [&] { optim::AdamW({weight}, {.lr = -1}); },
      throws("[AdamW] lr is -1, expected 0 or more"));
  EXPECT_THAT(
      [&] {
        optim::Adam({weight}, {.betas = {0.9, 1}});
      },
      throws("[Adam] betas is 1, expected a number from 0 to below 1"));
  EXPECT_THAT(
      [&] { optim::SGD({weight}, {.nesterov = true}); },
      throws("[SGD] momentum is 0, expected more than 0 with nesterov"));
  EXPECT_THAT(
      [&] { optim::Adafactor({weight}, {.d = 0.5}); },
      throws("[Adafactor] d is 0.5, expected 1 or more"));
  EXPECT_THAT(
      [&] { optim::Lion({weight}, {.weight_decay = -2}); },
      throws("[Lion] weight_decay is -2"));
  EXPECT_THAT(
      [&] { optim::Muon({weight}); },
      throws(
          "[Muon] A parameter has shape [4], but Muon only trains matrices",
          "AdamW"));
  weight.mutable_grad() = torch::ones({4}).to_sparse();
  EXPECT_THAT(
      [&] { optim::AdamW({weight}).step(); },
      throws("[AdamW] The gradient of parameter 0 of shape [4] is sparse"));
  optim::AdamW optimizer({weight});
  EXPECT_THAT(
      [&] { torch::save(optimizer, "unused"); },
      throws(
          "[AdamW] This optimizer cannot be saved as a torch archive",
          "optimizer_state"));
  auto gappy = torch::ones({4, 2}).select(1, 0).detach().requires_grad_();
  gappy.mutable_grad() = torch::ones({4});
  EXPECT_THAT(
      [&] { optim::AdamW({gappy}).step(); },
      throws("is not contiguous in memory"));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {torch::ones({1})}, std::make_unique<torch::optim::AdamOptions>(1.0)));
  EXPECT_THAT(
      [&] { optimizer.options(1); },
      throws("group 1 has the options of a different optimizer", "add_group"));
}

struct TextNetImpl : torch::nn::Module {
  TextNetImpl()
      : embedding(5, 4),
        dense(4, 3),
        norm(torch::nn::LayerNormOptions({3, 2})),
        batch_norm(3) {
    register_module("embedding", embedding);
    register_module("dense", dense);
    register_module("norm", norm);
    register_module("batch_norm", batch_norm);
    scale = register_parameter("scale", torch::ones({1}));
    attention_bias = register_parameter("attention_bias", torch::ones({2, 2}));
    frozen = register_parameter("frozen", torch::ones({2, 2}), false);
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear dense;
  torch::nn::LayerNorm norm;
  torch::nn::BatchNorm2d batch_norm;
  Tensor scale, attention_bias, frozen;
};

TEST(ParameterGroups, SpareBiasesNormsAndVectorsFromDecay) {
  TextNetImpl model;
  const auto groups = optim::no_decay_groups(model);
  ASSERT_EQ(groups.size(), 2);
  const auto names = [&](const optim::ParameterGroup& group) {
    std::vector<std::string> found;
    for (const auto& [name, parameter] : named_parameters(model)) {
      for (const auto& member : group.parameters) {
        if (member.is_same(parameter)) {
          found.push_back(name);
        }
      }
    }
    return found;
  };
  EXPECT_THAT(
      names(groups[0]),
      ::testing::UnorderedElementsAre("embedding.weight", "dense.weight"));
  EXPECT_THAT(
      names(groups[1]),
      ::testing::UnorderedElementsAre(
          "scale",
          "attention_bias",
          "dense.bias",
          "norm.weight",
          "norm.bias",
          "batch_norm.weight",
          "batch_norm.bias"));
  const optim::AdamW optimizer(groups, {.lr = 3e-5, .weight_decay = 0.01});
  EXPECT_EQ(optimizer.options(0).weight_decay, 0.01);
  EXPECT_EQ(optimizer.options(1).weight_decay, 0);
  EXPECT_EQ(optimizer.options(1).lr, 3e-5);
}

} // namespace
} // namespace accelerate::testing
