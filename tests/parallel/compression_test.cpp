// SPDX-License-Identifier: Apache-2.0
// Compressed gradients and averaged parameters compared with PyTorch's.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/distributed/c10d.h"
#include "parallel/reference.h"
#include "support/rank_bodies.h"
#include "support/state.h"
#include "training/parallel/compression.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

DdpOptions power_sgd(int64_t rank, bool warm_start = true) {
  return {
      .compression = Compression::kPowerSgd,
      .power_sgd = {
          .matrix_approximation_rank = rank,
          .start_powerSGD_iter = 2,
          .min_compression_rate = 0.1,
          .warm_start = warm_start}};
}

std::map<std::string, DdpOptions> hooks() {
  return {
      {"none", {}},
      {"fp16", {.compression = Compression::kFp16}},
      {"bf16", {.compression = Compression::kBf16}},
      {"power1", power_sgd(1)},
      {"power2", power_sgd(2)},
      {"power3", power_sgd(3)},
      {"power1_cold", power_sgd(1, false)}};
}

std::string train_with(AcceleratorOptions options, const std::string& hook) {
  options.ddp = hooks().at(hook);
  options.cpu = true;
  ReferenceTraining training(options);
  for (int64_t step = 0; step < reference()["steps"]; ++step) {
    training.step(step);
  }
  const auto trained = values_of(*training.model, false);
  EXPECT_TRUE(same_on_all(training.accelerator.process_group(), trained));
  return to_text(trained);
}

const RankBodyRegistration kPower2("power2", [](const auto& options) {
  return train_with(options, "power2");
});
const RankBodyRegistration kBf16("bf16", [](const auto& options) {
  return train_with(options, "bf16");
});

// The same operations in the same order on the same values; the remaining
// difference is that PyTorch multiplies P and Q as batches of one matrix.
constexpr double kTolerance = 2e-6;

TEST(Compression, TrainsAsPyTorchsHooksDo) {
  for (const auto& [name, options] : hooks()) {
    const auto expected = tensor_of(reference()["results"]["hook " + name]);
    run_ranks(2, [&, name = name](ProcessGroup group) {
      const auto trained = from_text(train_with({.process_group = group}, name))
                               .to(torch::kFloat);
      EXPECT_LT(distance(trained, expected), kTolerance) << name;
    });
  }
}

TEST(Compression, WorksBetweenProcesses) {
  for (const std::string name : {"power2", "bf16"}) {
    const auto expected = tensor_of(reference()["results"]["hook " + name]);
    for (const auto& text : run_body(RankKind::kProcesses, 2, name)) {
      EXPECT_LT(
          distance(from_text(text).to(torch::kFloat), expected), kTolerance);
    }
  }
}

/// A 24 x 10 matrix and a bias of 10 in one bucket.
struct Bucket {
  explicit Bucket(const Tensor& buffer)
      : buffer(buffer),
        bucket(
            /*index=*/0,
            /*bucket_count=*/1,
            buffer,
            {0, 240},
            {240, 10},
            {matrix_shape, bias_shape},
            {torch::zeros({24, 10}), torch::zeros(10)},
            std::nullopt) {}
  Tensor reduce(c10d::CommHookInterface& hook) {
    auto future = hook.runHook(bucket);
    future->waitAndThrow();
    return hook.parseHookResult(future->value());
  }
  std::vector<int64_t> matrix_shape{24, 10};
  std::vector<int64_t> bias_shape{10};
  Tensor buffer;
  c10d::GradBucket bucket;
};

std::string name_of(const Tensor& parameter) {
  return parameter.dim() == 2 ? "matrix" : "bias";
}

Tensor gradient_of(int rank) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(100 + rank));
  return torch::randn({250}, generator);
}

TEST(Compression, SendsTheBytesThatAreComputed) {
  const auto of_rank = [](int64_t rank) {
    return DdpOptions{
        .compression = Compression::kPowerSgd,
        .power_sgd = {
            .matrix_approximation_rank = rank, .start_powerSGD_iter = 2}};
  };
  // In bytes: all elements with 2 each, or (24 + 10) * rank + 10 with 4 each.
  // Four columns would not halve the matrix, so it is not compressed.
  const std::pair<DdpOptions, int64_t> cases[] = {
      {{.compression = Compression::kFp16}, 2 * 250},
      {{.compression = Compression::kBf16}, 2 * 250},
      {of_rank(1), 4 * (34 * 1 + 10)},
      {of_rank(2), 4 * (34 * 2 + 10)},
      {of_rank(4), 4 * 250}};
  for (const auto& [options, expected] : cases) {
    run_ranks(
        2, [&, options = options, expected = expected](ProcessGroup group) {
          auto state = std::make_shared<CompressionState>();
          state->group = to_c10d(group);
          state->divisor = group.world_size();
          state->name_of = name_of;
          const auto hook = make_compression(options, state).hook;
          for (int step = 0; step < 2; ++step) {
            Bucket(gradient_of(group.rank())).reduce(*hook);
          }
          state->bytes_sent = 0;
          Bucket(gradient_of(group.rank())).reduce(*hook);
          EXPECT_EQ(state->bytes_sent, expected);
        });
  }
}

TEST(Compression, IsExactAtFullMatrixRank) {
  auto options = power_sgd(10);
  options.power_sgd.start_powerSGD_iter = 0;
  options.power_sgd.use_error_feedback = false;
  options.power_sgd.warm_start = false;
  for (const int n : {1, 2, 4}) {
    run_ranks(n, [&](ProcessGroup group) {
      auto state = std::make_shared<CompressionState>();
      state->group = to_c10d(group);
      state->divisor = n;
      state->name_of = name_of;
      const auto hook = make_compression(options, state).hook;
      auto mean = gradient_of(0);
      for (int rank = 1; rank < n; ++rank) {
        mean += gradient_of(rank);
      }
      mean /= n;
      // Numbers of size 1 through two products of at most 24 terms.
      const auto reduced = Bucket(gradient_of(group.rank())).reduce(*hook);
      EXPECT_LT(distance(reduced, mean), 2e-5);
    });
  }
}

// A new engine lays out its buckets again in the second step.
TEST(Compression, ResumesFromItsStateBitForBit) {
  for (const int64_t rank : {1, 2}) {
    for (const int saved_after : {1, 3, 5}) {
      run_ranks(2, [&](ProcessGroup group) {
        const AcceleratorOptions options = {
            .ddp = power_sgd(rank), .process_group = group};
        ReferenceTraining whole(options);
        StateDict saved;
        for (int step = 0; step < 6; ++step) {
          if (step == saved_after) {
            saved = copy_of(whole.accelerator.state().state_dict());
          }
          whole.step(step);
        }
        ReferenceTraining rest(options);
        rest.accelerator.state().load_state_dict(saved);
        for (int step = saved_after; step < 6; ++step) {
          rest.step(step);
        }
        EXPECT_TRUE(torch::equal(
            values_of(*whole.model, true), values_of(*rest.model, true)))
            << rank << " columns, saved after " << saved_after;
        if (saved_after > 2) {
          EXPECT_TRUE(saved.contains("engine.error.first.weight"));
          EXPECT_TRUE(saved.contains("engine.q.first.weight"));
        }
      });
    }
  }
}

TEST(Compression, RollsBackErrorFeedback) {
  run_ranks(2, [](ProcessGroup group) {
    ReferenceTraining training({.ddp = power_sgd(1), .process_group = group});
    const auto saved = copy_of(training.accelerator.state().state_dict());
    const auto train = [&] {
      for (int step = 0; step < 4; ++step) {
        training.step(step);
      }
      return values_of(*training.model, true);
    };
    const auto first = train();
    training.accelerator.state().load_state_dict(saved);
    EXPECT_TRUE(torch::equal(train(), first));
    StateDict without;
    for (const auto& [name, value] : saved) {
      if (!name.starts_with("engine.") || name == "engine.is_here") {
        without.set(name, value);
      }
    }
    training.accelerator.state().load_state_dict(without);
    EXPECT_TRUE(torch::equal(train(), first)) << "as a new engine";
  });
}

double loss_after(const DdpOptions& options, int num_steps) {
  double last = 0;
  run_ranks(2, [&](ProcessGroup group) {
    ReferenceTraining training({.ddp = options, .process_group = group});
    // A learnable target.
    training.targets = torch::sin(training.inputs.narrow(1, 0, 4));
    double mean = 0;
    for (int step = 0; step < num_steps; ++step) {
      mean = 0.9 * mean + 0.1 * training.step(step % 6);
    }
    if (group.rank() == 0) {
      last = mean;
    }
  });
  return last;
}

TEST(Compression, LearnsAsWellAsWithoutCompression) {
  const double plain = loss_after({}, 240);
  EXPECT_LT(plain, 0.1);
  // One of up to 6 columns per matrix; the error is added to later steps.
  // Observed: 1.13 times the loss.
  EXPECT_LT(loss_after(power_sgd(1), 240), 1.25 * plain);
  // Gradients with 8 bits.
  EXPECT_NEAR(
      loss_after({.compression = Compression::kBf16}, 240), plain, 1e-3);
}

TEST(Compression, RejectsInvalidOptions) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator eager(
        {.ddp =
             {.compression = Compression::kPowerSgd,
              .power_sgd = {.start_powerSGD_iter = 1}},
         .process_group = group});
    EXPECT_THAT(
        [&] { eager.prepare(ReferenceNet()); },
        ThrowsMessage<UsageError>(HasSubstr("start_powerSGD_iter is 1")));
    Accelerator empty({.ddp = power_sgd(0), .process_group = group});
    EXPECT_THAT(
        [&] { empty.prepare(ReferenceNet()); },
        ThrowsMessage<UsageError>(HasSubstr("matrix_approximation_rank is 0")));
  });
}

TEST(LocalSGD, AveragesParametersAsAHandWrittenLoopDoes) {
  for (const int64_t k : {1, 4}) {
    const auto expected =
        tensor_of(reference()["results"]["local_sgd " + std::to_string(k)]);
    run_ranks(2, [&](ProcessGroup group) {
      ReferenceTraining training({.process_group = group});
      {
        LocalSGD local_sgd(training.accelerator, training.net, k);
        for (int64_t step = 0; step < reference()["steps"]; ++step) {
          training.step(step);
          local_sgd.step();
          const auto own = values_of(*training.model, false);
          EXPECT_EQ(same_on_all(group, own), (step + 1) % k == 0);
        }
      }
      const auto trained = values_of(*training.model, false);
      EXPECT_TRUE(same_on_all(group, trained));
      EXPECT_LT(distance(trained, expected), kTolerance);
      // Afterwards gradients are synchronised again.
      const auto x = training.inputs.narrow(0, 7 * group.rank(), 7);
      training.accelerator.backward(training.net(x).square().sum());
      EXPECT_TRUE(same_on_all(group, training.model->first->weight.grad()));
    });
  }
}

TEST(LocalSGD, IsAPlainLoopOnOneRank) {
  ReferenceTraining plain({.cpu = true});
  ReferenceTraining local({.cpu = true});
  LocalSGD local_sgd(local.accelerator, local.net, 2);
  for (int64_t step = 0; step < 4; ++step) {
    plain.step(step);
    local.step(step);
    local_sgd.step();
  }
  EXPECT_TRUE(
      values_of(*plain.model, true).equal(values_of(*local.model, true)));
}

TEST(LocalSGD, RejectsZeroSteps) {
  Accelerator accelerator({.cpu = true});
  auto net = accelerator.prepare(ReferenceNet());
  EXPECT_THAT(
      [&] { LocalSGD(accelerator, net, 0); },
      ThrowsMessage<UsageError>(HasSubstr("local_sgd_steps is 0")));
}

} // namespace
} // namespace accelerate::testing
