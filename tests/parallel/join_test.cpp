// SPDX-License-Identifier: Apache-2.0
// Ranks with different numbers of batches, compared with PyTorch's Join. A rank
// without a counterpart fails by the group's timeout, so nothing here can hang.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <sstream>

#include "parallel/reference.h"
#include "support/rank_bodies.h"
#include "training/parallel/engine.h"
#include "training/parallel/join.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

const ProcessGroupOptions kImpatient{.timeout = std::chrono::seconds(20)};

std::vector<int64_t> counts_in(const std::string& text) {
  std::istringstream words(text);
  std::vector<int64_t> counts;
  for (std::string word; std::getline(words, word, ',');) {
    counts.push_back(std::stoll(word));
  }
  return counts;
}

/// Parameters and buffers after a loop of `counts[rank]` batches.
Tensor train_uneven(
    const AcceleratorOptions& options,
    const std::vector<int64_t>& counts,
    JoinOptions join_options = {}) {
  ReferenceTraining training(options);
  {
    const auto join =
        training.accelerator.join_uneven_inputs(join_options, training.net);
    const auto rank = static_cast<size_t>(training.accelerator.process_index());
    for (int64_t step = 0; step < counts[rank]; ++step) {
      training.step(step);
    }
  }
  const auto trained =
      values_of(*training.model, options.ddp.broadcast_buffers);
  EXPECT_TRUE(same_on_all(training.accelerator.process_group(), trained));
  return trained;
}

const RankBodyRegistration kUneven("uneven", [](AcceleratorOptions options) {
  options.cpu = true;
  return to_text(train_uneven(options, {1, 3, 0, 2}));
});

// Float32, a handful of steps, gradients divided before or after the sum.
constexpr double kJoinTolerance = 2e-6;

TEST(JoinUnevenInputs, TrainsAsPyTorchsJoinDoes) {
  int num_cases = 0;
  for (const auto& [key, expected] : reference()["results"].items()) {
    std::istringstream words(key);
    std::string kind, counts_text, division;
    words >> kind >> counts_text >> division;
    if (kind != "join") {
      continue;
    }
    ++num_cases;
    const auto counts = counts_in(counts_text);
    const JoinOptions options{
        .divide_by_initial_world_size = division == "all"};
    run_ranks(
        static_cast<int>(counts.size()),
        [&, expected = tensor_of(expected)](ProcessGroup group) {
          const auto trained =
              train_uneven({.process_group = group}, counts, options);
          EXPECT_LT(distance(trained, expected), kJoinTolerance) << key;
        },
        kImpatient);
  }
  EXPECT_EQ(num_cases, 12);
}

TEST(JoinUnevenInputs, WorksBetweenProcesses) {
  const auto expected = tensor_of(reference()["results"]["join 1,3,0,2 all"]);
  for (const auto& text : run_body(RankKind::kProcesses, 4, "uneven")) {
    EXPECT_LT(
        distance(from_text(text).to(torch::kFloat), expected), kJoinTolerance);
  }
}

TEST(JoinUnevenInputs, WorksWithCompressedGradientsAndUnusedParameters) {
  const DdpOptions cases[] = {
      {.compression = Compression::kBf16},
      {.compression = Compression::kPowerSgd,
       .power_sgd = {.start_powerSGD_iter = 2, .min_compression_rate = 0.1}},
      {.find_unused_parameters = true},
      {.broadcast_buffers = false, .gradient_as_bucket_view = false}};
  for (const auto& ddp : cases) {
    run_ranks(
        3,
        [&](ProcessGroup group) {
          train_uneven({.ddp = ddp, .process_group = group}, {5, 0, 2});
        },
        kImpatient);
  }
}

TEST(JoinUnevenInputs, HandlesOneRankAndRanksWithoutBatches) {
  ReferenceTraining plain({.cpu = true});
  for (int64_t step = 0; step < 3; ++step) {
    plain.step(step);
  }
  EXPECT_TRUE(
      train_uneven({.cpu = true}, {3}).equal(values_of(*plain.model, true)));
  run_ranks(
      2,
      [](ProcessGroup group) {
        const auto untouched = train_uneven({.process_group = group}, {0, 0});
        ReferenceNet fresh;
        EXPECT_TRUE(untouched.equal(values_of(*fresh, true)));
      },
      kImpatient);
}

struct WeightImpl : torch::nn::Module {
  WeightImpl() { w = register_parameter("w", torch::zeros(1)); }
  Tensor forward(const Tensor& x) { return w * x; }
  Tensor w;
};
TORCH_MODULE(Weight);

/// The gradient of w * x is x; rank r feeds x = r + 1.
TEST(JoinUnevenInputs, MatchesSeveralModelsInAnyOrder) {
  run_ranks(
      2,
      [](ProcessGroup group) {
        Accelerator accelerator({.process_group = group});
        auto a = accelerator.prepare(Weight());
        auto b = accelerator.prepare(Weight());
        torch::optim::SGD sgd_a(a->parameters(), 1.0);
        torch::optim::SGD sgd_b(b->parameters(), 1.0);
        const auto x = torch::full({1}, group.rank() + 1.0);
        {
          const auto join = accelerator.join_uneven_inputs(a, b);
          const int num_batches = group.rank() == 0 ? 1 : 3;
          for (int i = 0; i < num_batches; ++i) {
            // One backward through both, then b alone, including without
            // gradients.
            accelerator.backward((a(x) + b(x)).sum());
            sgd_a.step();
            a->w.mutable_grad() = Tensor();
            b->w.mutable_grad() = Tensor();
            accelerator.backward(b(x).sum());
            sgd_b.step();
            b->w.mutable_grad() = Tensor();
            torch::NoGradGuard no_grad;
            a(x);
          }
        }
        // (1 + 2) / 2 once, then 2 / 2 twice.
        EXPECT_EQ(a->w.item<double>(), -3.5);
        EXPECT_EQ(b->w.item<double>(), -3.5);
        // Even steps continue as before.
        accelerator.backward(a(x).sum());
        EXPECT_EQ(a->w.grad().item<double>(), 1.5);
      },
      kImpatient);
}

TEST(JoinUnevenInputs, ReportsRanksThatUseModelsDifferently) {
  EXPECT_THAT(
      [] {
        run_ranks(
            3,
            [](ProcessGroup group) {
              ReferenceTraining training({.process_group = group});
              const auto join =
                  training.accelerator.join_uneven_inputs(training.net);
              if (group.rank() == 0) {
                return;
              }
              std::optional<NoSyncGuard> accumulate;
              if (group.rank() == 1) {
                accumulate.emplace(training.net.engine());
              }
              training.step(0);
            },
            kImpatient);
      },
      ThrowsMessage<MismatchError>(
          HasSubstr("some accumulate gradients and some synchronise them")));
}

/// Micro-batches of w * x with x = 1, two per update; returns the error at the
/// end of the block.
std::string said_at_the_end(
    ProcessGroup group,
    const std::vector<int>& counts,
    double& trained) {
  Accelerator accelerator(
      {.accumulation = {.num_steps = 2}, .process_group = group});
  Weight model;
  torch::optim::SGD sgd(model->parameters(), 1.0);
  auto [net, optimizer] = accelerator.prepare(model, sgd);
  std::string said;
  try {
    const auto join = accelerator.join_uneven_inputs(net);
    for (int i = 0; i < counts[static_cast<size_t>(group.rank())]; ++i) {
      const auto window = accelerator.accumulate(net);
      accelerator.backward(net(torch::ones(1)).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
  } catch (const UsageError& error) {
    said = error.what();
  }
  trained = model->w.item<double>();
  return said;
}

TEST(JoinUnevenInputs, ReportsAnIncompleteUpdateOnAllRanks) {
  run_ranks(
      3,
      [](ProcessGroup group) {
        double trained = 0;
        const auto said = said_at_the_end(group, {6, 3, 2}, trained);
        EXPECT_THAT(
            said,
            HasSubstr("Rank 1 ran out of batches in the middle of gradient "
                      "accumulation: it has 1 micro-batch left over, but rank "
                      "0 has 0"));
        EXPECT_THAT(said, HasSubstr("multiple of gradient_accumulation_steps"));
        // All ranks, then rank 0 alone twice.
        EXPECT_NEAR(trained, -1 - 2.0 / 3, 1e-6);
      },
      kImpatient);
}

TEST(JoinUnevenInputs, AcceptsRanksThatEndAtTheSameMicroBatch) {
  for (const auto& counts : {std::vector{4, 2}, {5, 3}, {1, 1}, {0, 4}}) {
    run_ranks(
        2,
        [&](ProcessGroup group) {
          double trained = 0;
          EXPECT_EQ(said_at_the_end(group, counts, trained), "");
        },
        kImpatient);
  }
}

TEST(JoinUnevenInputs, IgnoresIncompleteUpdatesAfterAnException) {
  run_ranks(
      2,
      [](ProcessGroup group) {
        Accelerator accelerator(
            {.accumulation = {.num_steps = 2}, .process_group = group});
        auto net = accelerator.prepare(Weight());
        EXPECT_THAT(
            [&] {
              const auto join = accelerator.join_uneven_inputs(net);
              if (group.rank() == 1) {
                const auto window = accelerator.accumulate(net);
              }
              throw std::runtime_error("of the loop");
            },
            ThrowsMessage<std::runtime_error>(HasSubstr("of the loop")));
      },
      kImpatient);
}

/// The gradient of w * x is x; rank r feeds x = r + 1.
TEST(JoinUnevenInputs, RejectsTrainingOfAModelThatIsNotJoined) {
  run_ranks(
      2,
      [](ProcessGroup group) {
        Accelerator accelerator({.process_group = group});
        auto a = accelerator.prepare(Weight());
        auto b = accelerator.prepare(Weight());
        auto norm = accelerator.prepare(torch::nn::BatchNorm1d(1));
        const auto x = torch::full({1}, group.rank() + 1.0);
        // Its buffers differ now, and its next forward sends them.
        accelerator.backward(norm(torch::stack({x, 3 * x})).sum());
        {
          const auto join = accelerator.join_uneven_inputs(a);
          const int num_batches = group.rank() == 0 ? 1 : 2;
          for (int i = 0; i < num_batches; ++i) {
            EXPECT_THAT(
                [&] { b(x); },
                ThrowsMessage<UsageError>(::testing::AllOf(
                    HasSubstr("WeightImpl"),
                    HasSubstr("was not passed to join_uneven_inputs()"))));
            {
              const torch::NoGradGuard no_grad;
              norm->eval();
              norm(x.view({1, 1}));
              EXPECT_EQ(b(x).item<double>(), 0);
            }
            a->w.mutable_grad() = Tensor();
            accelerator.backward(a(x).sum());
          }
        }
        if (group.rank() == 1) {
          EXPECT_EQ(a->w.grad().item<double>(), 1) << "alone";
        }
        // The mean of rank 0's batch, with momentum 0.1.
        EXPECT_NEAR(norm->running_mean.item<double>(), 0.2, 1e-6);
        accelerator.backward(b(x).sum());
        EXPECT_EQ(b->w.grad().item<double>(), 1.5);
      },
      kImpatient);
}

TEST(JoinUnevenInputs, RejectsModelsThatCannotBeMatched) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.ddp = {.static_graph = true}, .process_group = group});
    auto fixed = accelerator.prepare(Weight());
    EXPECT_THAT(
        [&] { auto join = accelerator.join_uneven_inputs(fixed); },
        ThrowsMessage<UsageError>(HasSubstr("static_graph")));
    Accelerator plain({.process_group = group});
    auto net = plain.prepare(Weight());
    EXPECT_THAT(
        [&] { auto join = plain.join_uneven_inputs(net, net); },
        ThrowsMessage<UsageError>(HasSubstr("A model was passed twice")));
    EXPECT_THAT(
        [&] { auto join = plain.join_uneven_inputs(); },
        ThrowsMessage<UsageError>(HasSubstr("No model")));
  });
}

/// The gradient of sum(w * x) by w is x; weights make the update equal to that
/// of one batch of all remaining ranks.
TEST(JoinUnevenInputs, WeightsLossesOfTheRemainingRanks) {
  for (const bool divides_by_all : {true, false}) {
    run_ranks(
        3,
        [&](ProcessGroup group) {
          Accelerator accelerator({.process_group = group});
          torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
          {
            const torch::NoGradGuard no_grad;
            model->weight.zero_();
          }
          torch::optim::SGD sgd(model->parameters(), 1);
          auto [net, optimizer] = accelerator.prepare(model, sgd);
          const int64_t counts[] = {1, 2, 0};
          {
            const auto join = accelerator.join_uneven_inputs(
                {.divide_by_initial_world_size = divides_by_all}, net);
            for (int64_t i = 0; i < counts[group.rank()]; ++i) {
              const auto x = torch::full({1, 1}, group.rank() + 1.0);
              accelerator.backward(
                  net(x).sum(), {.weight = group.rank() == 0 ? 3 : 1});
              optimizer.step();
              optimizer.zero_grad();
            }
          }
          // (3 * 1 + 1 * 2) / 4, then rank 1 alone: 2.
          EXPECT_NEAR(model->weight.item<float>(), -1.25 - 2, 1e-6);
        },
        kImpatient);
  }
}

TEST(JoinUnevenInputs, AnswersTheSmallReductionsOfAStep) {
  run_ranks(
      2,
      [](ProcessGroup group) {
        const auto reductions =
            std::make_shared<StepReductions>(group, c10::Device(c10::kCPU));
        int shared_from = -1;
        reductions->set_share([&](int root) { shared_from = root; });
        const auto local = std::make_shared<ParallelEngine>();
        {
          const JoinGuard guard(reductions, {local.get()});
          if (group.rank() == 1) {
            auto flags = torch::tensor({0.0f, 1.0f});
            EXPECT_EQ(reductions->reduce(flags, ReduceOp::kMax), 2);
            EXPECT_TRUE(flags.equal(torch::tensor({0.0f, 1.0f})));
            auto total = torch::full({}, 7.0, torch::kDouble);
            reductions->reduce(total, ReduceOp::kSum);
            EXPECT_EQ(total.item<double>(), 7);
          }
        }
        EXPECT_EQ(shared_from, 1) << "the rank that trained last";
      },
      kImpatient);
}

TEST(JoinUnevenInputs, RejectsANestedGuard) {
  Accelerator accelerator({.cpu = true});
  auto net = accelerator.prepare(torch::nn::Linear(1, 1));
  const auto join = accelerator.join_uneven_inputs(net);
  EXPECT_THAT(
      [&] { const auto second = accelerator.join_uneven_inputs(net); },
      ThrowsMessage<UsageError>(HasSubstr("cannot be nested")));
}

} // namespace
} // namespace accelerate::testing
