// SPDX-License-Identifier: Apache-2.0
// bf16 weights with fp32 master weights, compared with the same arithmetic by
// hand.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cstring>

#include "run/training.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

AcceleratorOptions with_masters(int64_t num_steps = 1) {
  return {
      .cpu = true,
      .mixed_precision = Precision::kBf16,
      .master_weights = true,
      .accumulation = {.num_steps = num_steps}};
}

TEST(MasterWeights, TrainAsTheSameArithmeticByHand) {
  torch::manual_seed(4);
  torch::nn::Linear model(3, 2);
  std::vector<Tensor> masters;
  for (const auto& parameter : model->parameters()) {
    masters.push_back(parameter.detach().clone().requires_grad_(true));
  }
  optim::AdamW by_hand(masters, {.lr = 0.01});
  optim::AdamW adamw(model->parameters(), {.lr = 0.01});
  Accelerator accelerator(with_masters());
  auto [net, opt] = accelerator.prepare(model, adamw);
  for (int step = 0; step < 5; ++step) {
    const auto x = torch::randn({4, 3});
    const auto y = torch::randn({4, 2});
    const auto output = net(x);
    EXPECT_EQ(output.scalar_type(), torch::kFloat);
    accelerator.backward(torch::mse_loss(output, y));
    const auto norm = accelerator.clip_grad_norm_(model->parameters(), 0.5);
    opt.step();
    opt.zero_grad();

    std::vector<Tensor> weights;
    for (const auto& master : masters) {
      weights.push_back(
          master.detach().to(torch::kBFloat16).requires_grad_(true));
    }
    torch::mse_loss(
        torch::linear(x.to(torch::kBFloat16), weights[0], weights[1])
            .to(torch::kFloat),
        y)
        .backward();
    for (size_t i = 0; i < masters.size(); ++i) {
      masters[i].mutable_grad() = weights[i].grad().to(torch::kFloat);
    }
    const double expected = torch::nn::utils::clip_grad_norm_(masters, 0.5);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-6);
    by_hand.step();
    for (size_t i = 0; i < masters.size(); ++i) {
      const auto weight = model->parameters()[i];
      EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
      EXPECT_TRUE(torch::allclose(
          weight.to(torch::kFloat),
          masters[i].to(torch::kBFloat16).to(torch::kFloat)))
          << step;
    }
  }
  const auto state = accelerator.state().state_dict();
  // Checkpoints contain the master weights. Clipping divides by norms that may
  // round differently in another order of summation.
  EXPECT_TRUE(torch::allclose(
      state.get<Tensor>("model.weight"), masters[0].detach(), 1e-5, 1e-7));
  EXPECT_EQ(state.get<Tensor>("model.weight").scalar_type(), torch::kFloat);
}

TEST(MasterWeights, KeepGradientsThatArrivedBeforeABackwardThrew) {
  struct TowerImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) { return last(first(x)); }
    torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 3));
    torch::nn::Linear last = register_module("last", torch::nn::Linear(3, 2));
  };
  const auto model = std::make_shared<TowerImpl>();
  const auto before = model->last->bias.detach().clone();
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1.0));
  Accelerator accelerator(with_masters());
  auto [net, opt] =
      accelerator.prepare(torch::nn::ModuleHolder<TowerImpl>(model), sgd);
  model->first->weight.register_hook([](const Tensor&) -> Tensor {
    throw std::domain_error("a mistake in backward");
  });
  EXPECT_THROW(
      accelerator.backward(net(torch::ones({1, 3})).sum()), std::domain_error);
  opt.step();
  // The gradient of the last bias is 1.
  EXPECT_TRUE(torch::allclose(
      model->last->bias.detach().to(torch::kFloat), before - 1, 0, 0.02));
}

/// Counts torch's memory.
struct CountedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    ++num_blocks;
    return c10::GetAllocator(c10::kCPU)->allocate(size);
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
  int num_blocks = 0;
};

TEST(MasterWeights, PassGradientsToAdamUnconverted) {
  CountedMemory of_gradients;
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  model->weight.detach().fill_(1);
  const auto by_hand = torch::ones({1, 1}).requires_grad_(true);
  optim::AdamW alone({by_hand}, {.lr = 0.01});
  optim::AdamW adamw(model->parameters(), {.lr = 0.01});
  auto options = with_masters();
  options.memory = {.gradients = &of_gradients};
  Accelerator accelerator(options);
  auto [net, opt] = accelerator.prepare(model, adamw);
  const auto master = adamw.param_groups()[0].params()[0];
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(net(torch::full({1, 1}, 0.7f)).sum());
    EXPECT_EQ(master.grad().scalar_type(), torch::kBFloat16);
    by_hand.mutable_grad() = master.grad().to(torch::kFloat);
    opt.step();
    alone.step();
    EXPECT_TRUE(torch::equal(master, by_hand));
    EXPECT_TRUE(torch::equal(model->weight, by_hand.to(torch::kBFloat16)));
    opt.zero_grad();
    EXPECT_FALSE(master.grad().defined());
  }
  // They need no memory of their own until someone needs them in float32.
  EXPECT_EQ(of_gradients.num_blocks, 0);
  // Accumulation is in float32: 256 + 1 is 256 in bf16.
  for (const float x : {256.0f, 1.0f}) {
    accelerator.backward(net(torch::full({1, 1}, x)).sum());
  }
  EXPECT_EQ(master.grad().scalar_type(), torch::kFloat);
  EXPECT_EQ(master.grad().item<float>(), 257.0f);
  EXPECT_EQ(of_gradients.num_blocks, 1);
}

/// A weight and a bias of 1 with gradients of 3 and 4, whose norm is 5.
struct Clipped {
  explicit Clipped(AcceleratorOptions options = with_masters())
      : accelerator(options), model(of_ones()) {}
  static torch::nn::Linear of_ones() {
    torch::nn::Linear model(1, 1);
    model->weight.detach().fill_(1);
    model->bias.detach().fill_(1);
    return model;
  }
  void backward(double scale = 1) {
    accelerator.backward(net(torch::full({1, 1}, 0.75f)).sum() * (4 * scale));
  }
  double clip(double limit) {
    return accelerator.clip_grad_norm_(model->parameters(), limit)
        .item<double>();
  }
  template <class Optimizer>
  static Tensor master(Optimizer& optimizer, size_t i) {
    return optimizer.param_groups()[0].params()[i];
  }

  Accelerator accelerator;
  torch::nn::Linear model;
  PreparedModel<torch::nn::LinearImpl> net = accelerator.prepare(model);
};

TEST(MasterWeights, AreClippedByTheStepOfAdamItself) {
  for (const int64_t num_steps : {1, 2}) {
    Clipped c(with_masters(num_steps));
    std::vector<Tensor> by_hand = {
        torch::ones({1, 1}).requires_grad_(true),
        torch::ones({1}).requires_grad_(true)};
    optim::AdamW alone(by_hand, {.lr = 0.01});
    optim::AdamW adamw(c.model->parameters(), {.lr = 0.01});
    auto opt = c.accelerator.prepare(adamw);
    for (const double limit : {2.5, 0.125, 100.0}) {
      for (int64_t i = 0; i < num_steps; ++i) {
        const auto window = c.accelerator.accumulate(c.net);
        c.backward(); // averaged over the accumulation
        const double norm = c.clip(limit);
        EXPECT_EQ(std::isnan(norm), i + 1 < num_steps);
        opt.step();
        if (i + 1 < num_steps) {
          continue;
        }
        EXPECT_EQ(norm, 5);
        // Gradients have not been modified.
        EXPECT_EQ(c.master(adamw, 0).grad().item<float>(), 3);
        EXPECT_EQ(c.master(adamw, 1).grad().item<float>(), 4);
        opt.step(); // again with the same gradients
        opt.zero_grad();
      }
      by_hand[0].mutable_grad() = torch::full({1, 1}, 3.0f);
      by_hand[1].mutable_grad() = torch::full({1}, 4.0f);
      torch::nn::utils::clip_grad_norm_(by_hand, limit);
      alone.step();
      alone.step();
      for (size_t i = 0; i < 2; ++i) {
        // The host computes torch's coefficient in double precision.
        EXPECT_TRUE(torch::allclose(
            c.master(adamw, i), by_hand[i], /*rtol=*/3e-7, /*atol=*/0))
            << limit;
        EXPECT_TRUE(torch::equal(
            c.model->parameters()[i], c.master(adamw, i).to(torch::kBFloat16)));
      }
    }
  }
}

TEST(MasterWeights, AreClippedForOtherReadersOfGradients) {
  const auto expect = [](const auto& change, double weight, double bias) {
    Clipped c;
    optim::SGD sgd(c.model->parameters(), {.lr = 1});
    auto opt = c.accelerator.prepare(sgd);
    c.backward();
    EXPECT_EQ(c.clip(2.5), 5);
    change(c);
    opt.step();
    // 1e-6 is added to the norm.
    EXPECT_NEAR(c.master(sgd, 0).template item<double>(), 1 - weight, 2e-6);
    EXPECT_NEAR(c.master(sgd, 1).template item<double>(), 1 - bias, 2e-6);
  };
  expect([](Clipped&) {}, 1.5, 2);
  expect([](Clipped& c) { EXPECT_NEAR(c.clip(1.25), 2.5, 1e-6); }, 0.75, 1);
  expect(
      [](Clipped& c) {
        c.accelerator.clip_grad_value_(c.model->parameters(), 1.75);
      },
      1.5,
      1.75);
  expect([](Clipped& c) { c.backward(); }, 4.5, 6);
  expect(
      [](Clipped& c) {
        const auto norm = c.accelerator.clip_grad_norm_({c.model->bias}, 0.5);
        EXPECT_NEAR(norm.item<double>(), 2, 1e-6);
      },
      1.5,
      0.5);
  // A loaded state has its own gradients.
  expect(
      [](Clipped& c) {
        const auto saved = testing::copy_of(c.accelerator.state().state_dict());
        c.accelerator.state().load_state_dict(saved);
      },
      1.5,
      2);
}

TEST(MasterWeights, AreClippedForTwoOptimizers) {
  for (const bool is_dropped : {true, false}) {
    Clipped c;
    optim::AdamW first({c.model->weight}, {.lr = 0.01});
    optim::SGD second({c.model->bias}, {.lr = 1});
    auto opt1 = c.accelerator.prepare(first);
    auto opt2 = c.accelerator.prepare(second);
    c.backward();
    c.clip(2.5);
    opt1.step();
    opt1.zero_grad(is_dropped);
    c.backward(); // accumulates only into the bias'
    EXPECT_EQ(c.master(first, 0).grad().item<float>(), 3);
    EXPECT_NEAR(c.master(second, 0).grad().item<float>(), 6, 2e-6);
    opt2.step();
    EXPECT_NEAR(c.master(second, 0).item<double>(), -5, 2e-6);
  }
}

TEST(MasterWeights, ForgetWhatWasClippedAfterAnOverflow) {
  for (const bool is_dropped : {true, false}) {
    Clipped c;
    optim::AdamW adamw(c.model->parameters(), {.lr = 0.01});
    auto opt = c.accelerator.prepare(adamw);
    c.backward(std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(std::isnan(c.clip(2.5)));
    opt.zero_grad(is_dropped);
    c.backward();
    EXPECT_EQ(c.clip(10), 5);
  }
}

TEST(MasterWeights, ShowClippedGradientsBeforeOtherSteps) {
  Clipped c;
  optim::SGD sgd(c.model->parameters(), {.lr = 1});
  auto opt = c.accelerator.prepare(sgd);
  c.backward();
  EXPECT_EQ(c.clip(2.5), 5);
  EXPECT_NEAR(c.master(sgd, 0).grad().item<double>(), 1.5, 2e-6);
  // Torch's own function clips what it sees: half of it remains.
  torch::nn::utils::clip_grad_norm_(sgd.param_groups()[0].params(), 1.25);
  opt.step();
  EXPECT_NEAR(c.master(sgd, 0).item<double>(), 0.25, 2e-6);
}

TEST(MasterWeights, AreNotMultipliedIfTheGradientWasReplaced) {
  Clipped c;
  std::vector<Tensor> by_hand = {
      torch::ones({1, 1}).requires_grad_(true),
      torch::ones({1}).requires_grad_(true)};
  optim::Adam alone(by_hand, {.lr = 0.01, .eps = 1});
  optim::Adam adam(c.model->parameters(), {.lr = 0.01, .eps = 1});
  auto opt = c.accelerator.prepare(adam);
  c.backward();
  EXPECT_EQ(c.clip(2.5), 5);
  by_hand[0].mutable_grad() = torch::full({1, 1}, 7.0f);
  by_hand[1].mutable_grad() = torch::full({1}, 2.0f);
  c.master(adam, 0).mutable_grad() = by_hand[0].grad();
  opt.step();
  alone.step();
  for (size_t i = 0; i < 2; ++i) {
    // 1e-6 is added to the norm.
    EXPECT_NEAR(
        c.master(adam, i).item<double>(), by_hand[i].item<double>(), 1e-7);
  }
}

class AccumulatedMasterWeights : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(
    SetToNone,
    AccumulatedMasterWeights,
    ::testing::Bool());

TEST_P(AccumulatedMasterWeights, AccumulateBeforeSynchronisation) {
  run_ranks(2, [&](ProcessGroup group) {
    auto options = with_masters(3);
    options.process_group = group;
    const void* place = nullptr;
    Clipped c(options);
    optim::SGD sgd(c.model->parameters(), {.lr = 1});
    auto opt = c.accelerator.prepare(sgd);
    // Their mean over ranks and micro-batches is 1, with values that bf16 can
    // represent.
    const std::vector<double> scales[] = {{1, 0.5, 0.5}, {2, 1.5, 0.5}};
    for (int update = 1; update <= 2; ++update) {
      for (const double scale : scales[group.rank()]) {
        const auto window = c.accelerator.accumulate(c.net);
        c.backward(scale);
        const double norm = c.clip(100);
        if (c.accelerator.sync_gradients()) {
          EXPECT_NEAR(norm, 5, 5e-2); // The mean of three is rounded to bf16.
        }
        opt.step();
        opt.zero_grad(GetParam());
        const auto gradient = c.model->parameters()[0].grad();
        EXPECT_EQ(
            gradient.defined(), !GetParam() || !c.accelerator.sync_gradients());
        if (!GetParam() && c.accelerator.sync_gradients()) {
          EXPECT_EQ(gradient.abs().max().item<float>(), 0);
          place = gradient.const_data_ptr();
        } else if (place != nullptr) {
          // Where replayed steps accumulate.
          EXPECT_EQ(gradient.const_data_ptr(), place);
        }
      }
      EXPECT_NEAR(c.master(sgd, 0).item<double>(), 1 - 3 * update, 3e-2);
      EXPECT_NEAR(c.master(sgd, 1).item<double>(), 1 - 4 * update, 4e-2);
    }
  });
}

TEST(MasterWeights, AreClippedOnAllRanksAlike) {
  run_ranks(2, [&](ProcessGroup group) {
    auto options = with_masters();
    options.process_group = group;
    Clipped c(options);
    optim::SGD sgd(c.model->parameters(), {.lr = 1});
    auto opt = c.accelerator.prepare(sgd);
    c.backward(group.rank() == 0 ? 0.5 : 1.5);
    EXPECT_EQ(c.clip(2.5), 5);
    opt.step();
    EXPECT_NEAR(c.master(sgd, 0).item<double>(), -0.5, 2e-6);
    EXPECT_NEAR(c.master(sgd, 1).item<double>(), -1, 2e-6);
  });
}

TEST(MasterWeights, ForgetGradientsAsTheModelDoes) {
  // Gradients are cleared by the prepared optimizer, the model, and the
  // original optimizer.
  for (const int way : {0, 1, 2}) {
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    model->weight.detach().fill_(1);
    torch::optim::SGD sgd(model->parameters(), 0.125);
    Accelerator accelerator(with_masters());
    auto [net, opt] = accelerator.prepare(model, sgd);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(net(torch::ones({1, 1})).sum());
      EXPECT_EQ(model->weight.grad().item<float>(), 1.0f) << way;
      opt.step();
      if (way == 1) {
        net.zero_grad();
      } else if (way == 2) {
        sgd.zero_grad();
      } else {
        opt.zero_grad();
      }
    }
    EXPECT_EQ(model->weight.item<float>(), 1.0f - 3 * 0.125f) << way;
  }
}

TEST(MasterWeights, KeepStepsThatAreTooSmallForBf16) {
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  model->weight.detach().fill_(1);
  optim::SGD sgd(model->parameters(), {.lr = 0.001});
  Accelerator accelerator(with_masters());
  auto [net, opt] = accelerator.prepare(model, sgd);
  // The largest bf16 number below 1 is 1 - 1/256.
  for (int step = 0; step < 10; ++step) {
    accelerator.backward(net(torch::ones({1, 1})).sum());
    opt.step();
    opt.zero_grad();
  }
  EXPECT_NEAR(
      accelerator.state()
          .state_dict()
          .get<Tensor>("model.weight")
          .item<double>(),
      0.99,
      1e-6);
  EXPECT_EQ(model->weight.item<float>(), 0.98828125f); // bf16's nearest.
}

TEST(MasterWeights, AccumulateInFp32) {
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  model->weight.detach().fill_(0);
  optim::SGD sgd(model->parameters(), {.lr = 1});
  Accelerator accelerator(with_masters(2));
  auto [net, opt] = accelerator.prepare(model, sgd);
  // Losses are halved; 256 + 1 is 256 in bf16.
  for (const float x : {512.0f, 2.0f}) {
    const auto window = accelerator.accumulate(net);
    accelerator.backward(net(torch::full({1, 1}, x)).sum());
    opt.step();
    opt.zero_grad();
  }
  EXPECT_EQ(
      accelerator.state()
          .state_dict()
          .get<Tensor>("model.weight")
          .item<float>(),
      -257);
}

/// Three micro-batches per update. Without batch norm, whose fp32 statistics
/// torch does not accept together with bf16 weights.
struct Windows {
  Windows()
      : accelerator(with_masters(3)),
        model(
            torch::nn::Linear(3, 8),
            torch::nn::Dropout(0.3),
            torch::nn::Linear(8, 1)),
        adamw(model->parameters(), {.lr = 0.05}),
        net(accelerator.prepare(model)),
        opt(accelerator.prepare(adamw)) {}

  std::vector<double> run(int64_t begin, int64_t end, bool weighted) {
    std::vector<double> losses;
    for (int64_t i = begin; i < end; ++i) {
      auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(i));
      const auto x = torch::randn({4, 3}, generator);
      const auto window = accelerator.accumulate(net);
      auto loss = torch::mse_loss(net(x), x.sum(1, true));
      BackwardOptions options;
      if (weighted) {
        options.weight = static_cast<double>(1 + i % 4);
      }
      accelerator.backward(loss, options);
      opt.step();
      opt.zero_grad();
      losses.push_back(loss.item<double>());
    }
    return losses;
  }

  Accelerator accelerator;
  torch::nn::Sequential model;
  optim::AdamW adamw;
  PreparedModel<torch::nn::SequentialImpl> net;
  PreparedOptimizer opt;
};

TEST(MasterWeights, ResumeBitForBitFromEveryMicroBatch) {
  for (const bool weighted : {false, true}) {
    for (const int64_t save_at : {1, 2, 3, 7}) {
      torch::manual_seed(1);
      Windows whole;
      whole.run(0, save_at, weighted);
      const auto saved =
          testing::copy_of(whole.accelerator.state().state_dict());
      const auto expected = whole.run(save_at, 12, weighted);
      torch::manual_seed(77);
      Windows rest;
      rest.accelerator.state().load_state_dict(saved);
      EXPECT_EQ(rest.run(save_at, 12, weighted), expected) << save_at;
    }
  }
}

TEST(MasterWeights, AreRankZerosOnAllRanksAndStayAlike) {
  std::vector<Tensor> results(2);
  run_ranks(2, [&](ProcessGroup group) {
    auto options = with_masters(2);
    options.process_group = group;
    torch::nn::Linear model(2, 1);
    model->weight.detach().fill_(0.3 + group.rank());
    model->bias.detach().fill_(0);
    optim::AdamW adamw(model->parameters(), {.lr = 0.01});
    Accelerator accelerator(options);
    auto [net, opt] = accelerator.prepare(model, adamw);
    for (int step = 0; step < 6; ++step) {
      const auto window = accelerator.accumulate(net);
      const double x = step + 2 * group.rank();
      accelerator.backward(net(torch::full({1, 2}, x)).square().mean());
      opt.step();
      opt.zero_grad();
    }
    results[static_cast<size_t>(group.rank())] =
        accelerator.state().state_dict().get<Tensor>("model.weight").clone();
  });
  EXPECT_TRUE(torch::equal(results[0], results[1]));
  // Three steps of about the rate from rank 0's 0.3.
  EXPECT_NEAR(results[0][0][0].item<double>(), 0.27, 0.005);
}

TEST(MasterWeights, AreSavedAsAModelToo) {
  const testing::TempDir folder;
  torch::nn::Linear model(3, 2);
  const auto before = model->weight.detach().clone();
  Accelerator accelerator(with_masters());
  auto net = accelerator.prepare(model);
  accelerator.save_model(net, folder.path());
  const safetensors::File file(folder.path() / "model.safetensors");
  EXPECT_EQ(file.tensor("weight").dtype, safetensors::Dtype::kF32);
  auto* data = const_cast<std::byte*>(file.tensor("weight").data.data());
  EXPECT_TRUE(
      torch::equal(torch::from_blob(data, {2, 3}, torch::kFloat), before));
}

TEST(MasterWeights, RejectIncompatibleOptions) {
  EXPECT_THAT(
      [] { Accelerator({.cpu = true, .master_weights = true}); },
      ThrowsMessage<ConfigError>(HasSubstr("needs bf16 mixed precision")));
  Accelerator accelerator(with_masters());
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(3, 2).sparse(true));
  EXPECT_THAT(
      [&] { accelerator.prepare(table); },
      ThrowsMessage<UsageError>(HasSubstr("sparse")));
  torch::nn::Linear model(1, 1);
  auto net = accelerator.prepare(model);
  EXPECT_THAT(
      [&] { LocalSGD(accelerator, net, 2); },
      ThrowsMessage<UsageError>(HasSubstr("[LocalSGD]")));
}

} // namespace
} // namespace accelerate
