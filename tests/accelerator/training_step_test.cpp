// SPDX-License-Identifier: Apache-2.0
// Accumulation, weights of losses, clipping and several models, against Hugging
// Face Accelerate (tools/make_training_step_reference.py) and plain autograd.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "support/rank_bodies.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

nlohmann::json step_reference() {
  std::ifstream file(std::string(TEST_REFERENCE_DIR) + "/training_step.json");
  return nlohmann::json::parse(file);
}

Tensor grid(int64_t rows, int64_t columns, double a, double b) {
  const auto i = torch::arange(rows, torch::kDouble).unsqueeze(1);
  const auto j = torch::arange(columns, torch::kDouble).unsqueeze(0);
  return torch::sin(a * i + b * j).to(torch::kFloat);
}

torch::nn::Sequential make_model() {
  torch::nn::Sequential model(
      torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 2));
  const torch::NoGradGuard no_grad;
  double k = 0;
  for (auto& parameter : model->parameters()) {
    parameter.copy_(
        grid(1, parameter.numel(), 0, 0.37 + k++).reshape(parameter.sizes()));
  }
  return model;
}

Tensor joined(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> parts;
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.detach().flatten());
  }
  return torch::cat(parts);
}

/// The training of the reference with `steps` micro-batches per update.
std::string train(AcceleratorOptions options, int64_t steps) {
  options.accumulation.num_steps = steps;
  Accelerator accelerator(options);
  auto model = make_model();
  torch::optim::SGD sgd(
      model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  DataLoader dataloader(
      TensorDataset({grid(46, 4, 0.7, 1.3), grid(46, 2, 0.3, 0.9)}),
      {.batch_size = 3});
  // A nested loop must not end an accumulation.
  DataLoader evaluation(TensorDataset({grid(4, 4, 1, 1)}), {.batch_size = 4});
  auto [net, optimizer, loader, inner] =
      accelerator.prepare(model, sgd, dataloader, evaluation);
  double updates = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate(net);
      accelerator.backward(torch::mse_loss(net(batch[0]), batch[1]));
      for (auto& unused : inner) {
        const torch::NoGradGuard no_grad;
        net(unused[0]);
      }
      accelerator.clip_grad_norm_(model->parameters(), 0.5);
      optimizer.step();
      optimizer.zero_grad();
      updates += optimizer.did_step() ? 1 : 0;
    }
  }
  return to_text(torch::cat(
      {torch::tensor({updates}),
       joined(model->parameters()).to(torch::kDouble)}));
}

const RankBodyRegistration kTrain1("accumulate1", [](const auto& options) {
  return train(options, 1);
});
const RankBodyRegistration kTrain2("accumulate2", [](const auto& options) {
  return train(options, 2);
});
const RankBodyRegistration kTrain3("accumulate3", [](const auto& options) {
  return train(options, 3);
});
const RankBodyRegistration kTrain7("accumulate7", [](const auto& options) {
  return train(options, 7);
});

TEST(Accumulate, TrainsAsHuggingFaceAccelerateWithAShortLastAccumulation) {
  const auto cases = step_reference()["accumulation"];
  ASSERT_EQ(cases.size(), 12u);
  for (const auto& expected : cases) {
    const int ranks = expected["ranks"];
    const int64_t steps = expected["steps"];
    const auto texts = run_body(
        ranks == 2 && steps == 3 ? RankKind::kProcesses : RankKind::kThreads,
        ranks,
        "accumulate" + std::to_string(steps));
    for (const auto& text : texts) {
      EXPECT_EQ(text, texts[0]) << "the ranks must agree bit for bit";
    }
    const auto got = from_text(texts[0]);
    EXPECT_EQ(got[0].item<double>(), expected["updates"].get<double>());
    const auto weights = torch::tensor(
        expected["weights"].get<std::vector<double>>(), torch::kDouble);
    // Up to 32 updates in fp32 whose sums are computed in another order across
    // ranks.
    EXPECT_LT((got.slice(0, 1) - weights).abs().max().item<double>(), 5e-6)
        << ranks << " ranks, " << steps << " steps";
  }
}

/// Ragged micro-batches: rank r of N has 3 of them, of (r + k) % 4 + 1 rows.
std::vector<std::pair<int64_t, int64_t>> rows_of(int rank, int num_ranks) {
  std::vector<std::pair<int64_t, int64_t>> rows;
  int64_t next = 0;
  for (int r = 0; r < num_ranks; ++r) {
    for (int k = 0; k < 3; ++k) {
      const int64_t count = (r + k) % 4 + 1;
      if (r == rank) {
        rows.emplace_back(next, next + count);
      }
      next += count;
    }
  }
  rows.emplace_back(next, next); // the end: the total
  return rows;
}

void expect_weighted_gradient(
    const AcceleratorOptions& given,
    bool each_batch) {
  AcceleratorOptions options = given;
  options.accumulation.num_steps = 3;
  options.accumulation.sync_each_batch = each_batch;
  Accelerator accelerator(options);
  auto model = make_model();
  auto net = accelerator.prepare(model);
  auto rows = rows_of(accelerator.process_index(), accelerator.num_processes());
  const int64_t all = rows.back().first;
  rows.pop_back();
  const auto x = grid(all, 4, 0.7, 1.3);
  const auto y = grid(all, 2, 0.3, 0.9);
  for (const auto& [first, last] : rows) {
    const auto window = accelerator.accumulate(net);
    const auto loss =
        torch::mse_loss(net(x.slice(0, first, last)), y.slice(0, first, last));
    accelerator.backward(loss, {.weight = last - first});
  }
  auto whole = make_model();
  torch::mse_loss(whole->forward(x), y).backward();
  for (size_t i = 0; i < whole->parameters().size(); ++i) {
    const auto expected = whole->parameters()[i].grad();
    const auto got = model->parameters()[i].grad();
    EXPECT_LT((got - expected).abs().max().item<double>(), 1e-6)
        << "parameter " << i << " on " << accelerator.num_processes();
  }
}

TEST(Backward, WeightedMicroBatchesEqualOneBigBatch) {
  for (const bool each_batch : {false, true}) {
    expect_weighted_gradient({}, each_batch);
    for (const int ranks : {2, 4}) {
      run_ranks(ranks, [&](ProcessGroup group) {
        expect_weighted_gradient({.process_group = group}, each_batch);
      });
    }
  }
}

TEST(Backward, AcceptsATensorAsWeightAndRejectsPartlyWeightedUpdates) {
  Accelerator accelerator({.accumulation = {.num_steps = 2}});
  auto model = make_model();
  auto net = accelerator.prepare(model);
  const auto x = grid(2, 4, 1, 1);
  const auto window = accelerator.accumulate(net);
  const auto loss = [&] { return net(x).sum(); };
  accelerator.backward(loss(), {.weight = torch::tensor({2})});
  EXPECT_THAT(
      [&] { accelerator.backward(loss()); },
      ThrowsMessage<UsageError>(HasSubstr("Only some micro-batches")));
  EXPECT_THAT(
      [&] { accelerator.backward(loss(), {.weight = -1}); },
      ThrowsMessage<UsageError>(HasSubstr("weight is -1")));
  EXPECT_THAT(
      [&] { accelerator.backward(loss(), {.weight = HUGE_VAL}); },
      ThrowsMessage<UsageError>(HasSubstr("weight is inf")));
  EXPECT_THAT(
      [&] { accelerator.backward(loss(), {.weight = torch::ones({2})}); },
      ThrowsMessage<UsageError>(HasSubstr("with 2 elements")));
}

/// What `train` writes to stderr.
std::string said_by(const std::function<void()>& train) {
  ::testing::internal::CaptureStderr();
  train();
  return ::testing::internal::GetCapturedStderr();
}

void train_to_nan(int num_good, int num_bad) {
  Accelerator accelerator({.cpu = true});
  auto net = accelerator.prepare(torch::nn::Linear(1, 1));
  for (int step = 0; step < num_good + num_bad; ++step) {
    const double x = step < num_good ? 1 : NAN;
    accelerator.backward(net(torch::full({1, 1}, x)).sum());
  }
}

TEST(Backward, WarnsOnceAboutALossThatStaysNan) {
  EXPECT_EQ(
      said_by([] { train_to_nan(1, 45); }),
      "[backward] The loss has been NaN or infinite for 20 steps in a row, so "
      "the weights are probably NaN too. Load an earlier checkpoint, then "
      "lower the learning rate or check the data\n");
  EXPECT_EQ(said_by([] { train_to_nan(1, 19); }), "");
}

std::string train_with(bool prepares, AcceleratorOptions options) {
  return said_by([&] {
    options.cpu = true;
    Accelerator accelerator(options);
    torch::nn::Linear model(1, 1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto net = accelerator.prepare(model);
    if (prepares) {
      auto optimizer = accelerator.prepare(sgd);
      for (int step = 0; step < 24; ++step) {
        const auto accumulate = accelerator.accumulate(net);
        accelerator.backward(net(torch::ones({1, 1})).sum());
        optimizer.step();
      }
      return;
    }
    for (int step = 0; step < 24; ++step) {
      const auto accumulate = accelerator.accumulate(net);
      accelerator.backward(net(torch::ones({1, 1})).sum());
      sgd.step();
    }
  });
}

TEST(Backward, WarnsAboutAnUnpreparedOptimizer) {
  EXPECT_EQ(
      train_with(false, {.accumulation = {.num_steps = 2}}),
      "[backward] No prepared optimizer trains 'model'. Pass its optimizer to "
      "prepare(); otherwise the optimizer steps in every micro-batch\n");
  EXPECT_EQ(train_with(true, {.accumulation = {.num_steps = 2}}), "");
  EXPECT_EQ(train_with(false, {}), "");
}

/// Only rank 0 prints.
std::string train_on(const std::function<double(int step, int rank)>& value) {
  return said_by([&] {
    run_ranks(2, [&](ProcessGroup group) {
      Accelerator accelerator({.cpu = true, .process_group = group});
      auto net = accelerator.prepare(torch::nn::Linear(1, 1));
      for (int step = 0; step < 5; ++step) {
        const double x = value(step, group.rank());
        accelerator.backward(net(torch::full({1, 1}, x)).sum());
      }
    });
  });
}

TEST(Backward, WarnsIfAllRanksTrainOnTheSameData) {
  EXPECT_EQ(
      train_on([](int step, int) { return step; }),
      "[backward] The inputs of the first 3 steps were the same on all ranks, "
      "so all ranks train on the same data. Pass the data loader to "
      "prepare()\n");
  // Their own data, and a batch that never changes.
  EXPECT_EQ(train_on([](int step, int rank) { return step + rank; }), "");
  EXPECT_EQ(train_on([](int, int) { return 1; }), "");
  // By chance in one step.
  EXPECT_EQ(train_on([](int step, int rank) { return step * rank; }), "");
}

TEST(Backward, DoesNotWarnAboutEqualDataFromAPreparedLoader) {
  EXPECT_EQ(
      said_by([] {
        run_ranks(2, [](ProcessGroup group) {
          Accelerator accelerator({.cpu = true, .process_group = group});
          auto net = accelerator.prepare(torch::nn::Linear(1, 1));
          // Each sample twice, so that both ranks get the same.
          const auto x = torch::arange(8).div(2, "floor").to(torch::kFloat);
          auto loader = accelerator.prepare(
              DataLoader(TensorDataset({x.unsqueeze(1)}), {.batch_size = 1}));
          for (auto& batch : loader) {
            accelerator.backward(net(batch[0]).sum());
          }
        });
      }),
      "");
}

TEST(Backward, RejectsALossOfNoPreparedModel) {
  Accelerator accelerator;
  auto model = make_model();
  auto net = accelerator.prepare(model);
  const auto x = grid(2, 4, 1, 1);
  EXPECT_THAT(
      [&] { accelerator.backward(model->forward(x).sum()); },
      ThrowsMessage<UsageError>(
          HasSubstr("No prepared model has been called since")));
  accelerator.backward(net(x).sum());
}

TEST(Accumulate, GradientsStayLocalUntilTheUpdate) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.accumulation = {.num_steps = 2}, .process_group = group});
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    auto net = accelerator.prepare(model);
    const auto x = torch::full({1, 1}, accelerator.process_index() + 1.0);
    {
      const auto window = accelerator.accumulate(net);
      EXPECT_FALSE(accelerator.sync_gradients());
      accelerator.backward(net(x).sum());
      EXPECT_EQ(model->weight.grad().item<float>(), x.item<float>() / 2);
    }
    const auto window = accelerator.accumulate(net);
    EXPECT_TRUE(accelerator.sync_gradients());
    accelerator.backward(net(x).sum());
    EXPECT_EQ(model->weight.grad().item<float>(), 1.5f);
  });
}

TEST(Accumulate, AlternatingModelsAccumulateSeparately) {
  Accelerator accelerator({.accumulation = {.num_steps = 2}});
  torch::nn::Linear first(1, 1);
  torch::nn::Linear second(1, 1);
  auto [a, b] = accelerator.prepare(first, second);
  std::string syncs;
  for (int batch = 0; batch < 4; ++batch) {
    for (auto* net : {&a, &b}) {
      const auto window = accelerator.accumulate(*net);
      accelerator.backward((*net)(torch::ones({1, 1})).sum(), {.weight = 1});
      syncs += accelerator.sync_gradients() ? '1' : '0';
    }
  }
  EXPECT_EQ(syncs, "00110011");
  EXPECT_EQ(first->weight.grad().item<float>(), 2) << "the mean of each window";
}

TEST(Backward, AllowsTwoForwardsBeforeEitherStep) {
  Accelerator accelerator;
  torch::nn::Linear first(1, 1);
  torch::nn::Linear second(1, 1);
  torch::optim::SGD sgd1(first->parameters(), 0.1);
  torch::optim::SGD sgd2(second->parameters(), 0.1);
  auto [a, b, opt1, opt2] = accelerator.prepare(first, second, sgd1, sgd2);
  const auto x = torch::ones({1, 1});
  const auto loss1 = a(x).sum();
  const auto loss2 = b(x).sum();
  accelerator.backward(loss1);
  opt1.step();
  accelerator.backward(loss2);
  opt2.step();
  EXPECT_THAT(
      [&] { accelerator.backward(first->forward(x).sum()); },
      ThrowsMessage<UsageError>(
          HasSubstr("No prepared model has been called since")));
}

TEST(Accumulate, RejectsAStaticGraphThatStartsDuringAccumulation) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.accumulation = {.num_steps = 2},
         .ddp = {.static_graph = true},
         .process_group = group});
    torch::nn::Linear model(1, 1);
    auto net = accelerator.prepare(model);
    const auto window = accelerator.accumulate(net);
    EXPECT_THAT(
        [&] {
          net(torch::ones({1, 1}));
        },
        ThrowsMessage<UsageError>(HasSubstr("leave static_graph off")));
  });
}

TEST(Accelerator, TriggerSyncAveragesAccumulatedGradients) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    auto net = accelerator.prepare(model);
    const auto x = torch::full({1, 1}, accelerator.process_index() + 1.0);
    Tensor loss;
    {
      const auto held = accelerator.no_sync(net);
      loss = net(x).sum();
      accelerator.backward(net(x).sum());
    }
    accelerator.trigger_sync_in_backward(net);
    accelerator.backward(loss);
    EXPECT_EQ(model->weight.grad().item<float>(), 3.0f) << "(1 + 2) * 2 / 2";
  });
}

TEST(Accelerator, AlternatesBetweenTwoModelsAndTheirOptimizers) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    torch::nn::Linear generator(1, 1);
    torch::nn::Linear critic(1, 1);
    torch::optim::SGD sgd_g(generator->parameters(), 0.1);
    torch::optim::Adam adam_d(critic->parameters(), 0.1);
    auto [g, d, opt_g, opt_d] =
        accelerator.prepare(generator, critic, sgd_g, adam_d);
    const auto x = torch::full({2, 1}, accelerator.process_index() + 1.0);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(d(g(x).detach()).pow(2).mean());
      opt_d.step();
      opt_d.zero_grad();
      accelerator.backward((1 - d(g(x))).pow(2).mean());
      opt_g.step();
      opt_g.zero_grad();
      opt_d.zero_grad();
    }
    for (const auto* model : {generator.get(), critic.get()}) {
      const auto all = accelerator.gather(model->weight.detach());
      EXPECT_EQ(all[0].item<float>(), all[1].item<float>());
    }
  });
}

const RankBodyRegistration kOverflow("overflow", [](const auto& given) {
  AcceleratorOptions options = given;
  options.mixed_precision = Precision::kFp16;
  options.scaler.init_scale = 1024;
  Accelerator accelerator(options);
  torch::nn::Linear model(4, 1);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, optimizer] = accelerator.prepare(model, sgd);
  const auto x = torch::ones({2, 4}).to(accelerator.device());
  std::string skipped;
  for (int step = 0; step < 3; ++step) {
    // Local gradients: only rank 1 sees the infinity.
    const auto held = accelerator.no_sync(net);
    const bool overflows = step == 1 && accelerator.process_index() == 1;
    accelerator.backward(
        net(x).mean() *
        (overflows ? std::numeric_limits<double>::infinity() : 1.0));
    accelerator.clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
    skipped += accelerator.optimizer_step_was_skipped() ? '1' : '0';
  }
  return skipped + std::to_string(accelerator.scaler()->current_scale());
});

TEST(MixedPrecisionOnAGpu, OverflowOnOneOfTwoRanksSkipsTheStepOnBoth) {
  if (Accelerator().device().is_cpu()) {
    GTEST_SKIP() << "needs a GPU";
  }
  for (const auto& text : run_body(RankKind::kProcesses, 2, "overflow")) {
    EXPECT_EQ(text, "010512.000000");
  }
}

TEST(ClipGradNorm, ClipsAsTorchAndReturnsTheNormBefore) {
  for (const double type :
       {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    for (const double limit : {0.1, 1e6}) {
      Accelerator accelerator;
      auto model = make_model();
      auto twin = make_model();
      auto net = accelerator.prepare(model);
      const auto x = grid(6, 4, 0.7, 1.3);
      accelerator.backward(net(x).pow(2).sum());
      twin->forward(x).pow(2).sum().backward();
      const double expected =
          torch::nn::utils::clip_grad_norm_(twin->parameters(), limit, type);
      const auto norm =
          accelerator.clip_grad_norm_(model->parameters(), limit, type);
      // Another order of summation.
      EXPECT_NEAR(norm.item<double>(), expected, 1e-6 * expected);
      for (size_t i = 0; i < twin->parameters().size(); ++i) {
        EXPECT_TRUE(torch::allclose(
            model->parameters()[i].grad(), twin->parameters()[i].grad(), 1e-5));
      }
    }
  }
}

TEST(ClipGradValue, ClampsEachElement) {
  Accelerator accelerator;
  torch::nn::Linear model(torch::nn::LinearOptions(3, 1).bias(false));
  auto net = accelerator.prepare(model);
  accelerator.backward(net(torch::tensor({{-3.0f, 0.25f, 2.0f}})).sum());
  accelerator.clip_grad_value_(model->parameters(), 0.5);
  EXPECT_TRUE(torch::equal(
      model->weight.grad(), torch::tensor({{-0.5f, 0.25f, 0.5f}})));
  EXPECT_THAT(
      [&] { accelerator.clip_grad_value_(model->parameters(), -1); },
      ThrowsMessage<UsageError>(HasSubstr("at least 0")));
  EXPECT_THAT(
      [&] { accelerator.clip_grad_norm_(model->parameters(), -1); },
      ThrowsMessage<UsageError>(HasSubstr("max_norm is -1")));
}

} // namespace
} // namespace accelerate::testing
