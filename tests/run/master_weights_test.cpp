// SPDX-License-Identifier: Apache-2.0
// Weights in bf16 with masters in fp32, beside the same arithmetic by hand.
#include <gmock/gmock.h>
#include <torch/torch.h>

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
  // Checkpoints hold the masters. Clipping divides by norms that two orders of
  // summation may round differently.
  EXPECT_TRUE(torch::allclose(
      state.get<Tensor>("model.weight"), masters[0].detach(), 1e-5, 1e-7));
  EXPECT_EQ(state.get<Tensor>("model.weight").scalar_type(), torch::kFloat);
}

TEST(MasterWeights, GiveAdamGradientsAsTheyCame) {
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  model->weight.detach().fill_(1);
  const auto by_hand = torch::ones({1, 1}).requires_grad_(true);
  optim::AdamW alone({by_hand}, {.lr = 0.01});
  optim::AdamW adamw(model->parameters(), {.lr = 0.01});
  Accelerator accelerator(with_masters());
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
  // What is added up is added up in float32: 256 + 1 is 256 in bf16.
  for (const float x : {256.0f, 1.0f}) {
    accelerator.backward(net(torch::full({1, 1}, x)).sum());
  }
  EXPECT_EQ(master.grad().scalar_type(), torch::kFloat);
  EXPECT_EQ(master.grad().item<float>(), 257.0f);
}

TEST(MasterWeights, ForgetGradientsAsTheModelDoes) {
  // Gradients are forgotten by the prepared optimizer, the model, and the
  // optimizer that was prepared.
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
  // Of 1, bf16 knows no neighbour below 1 - 1/256.
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

TEST(MasterWeights, AddUpWindowsInFp32) {
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

/// Three micro-batches a window. Without batch norm, whose statistics are
/// buffers in fp32 that torch does not take beside weights in bf16.
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

TEST(MasterWeights, GoOnBitForBitFromEveryMicroBatch) {
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

TEST(MasterWeights, RefuseWhatDoesNotGoTogether) {
  EXPECT_THAT(
      [] { Accelerator({.cpu = true, .master_weights = true}); },
      ThrowsMessage<ConfigError>(HasSubstr("expected bf16")));
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
