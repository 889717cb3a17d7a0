// SPDX-License-Identifier: Apache-2.0
// A kind of accelerator that `src/` does not know trains bit-identically to the
// CPU: its kernels are the CPU's, with the same values in the same order.
#include "device/pretend_accelerator.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/device/accelerator_kind.h"
#include "accelerate/distributed/c10d.h"
#include "accelerate/error.h"
#include "support/rank_bodies.h"
#include "training/parallel/engine.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using torch::Tensor;

const bool kIsRegistered = (register_pretend_accelerator(), true);

struct Training {
  std::string name;
  Precision precision;
  int64_t num_accumulation_steps;
  ShardStage stage = ShardStage::kNone;
  bool is_offloaded = false;
};

const std::vector<Training> kTrainings = {
    {"plain", Precision::kNo, 1},
    {"bf16", Precision::kBf16, 1},
    {"accumulation", Precision::kNo, 3},
    {"bf16_accumulation", Precision::kBf16, 3},
    {"sharded", Precision::kNo, 1, ShardStage::kParameters},
    {"offloaded", Precision::kBf16, 3, ShardStage::kParameters, true},
    {"offloaded_gradients", Precision::kNo, 3, ShardStage::kGradients, true},
};

/// Losses and weights of some steps, after a line on where they were made.
std::string train(AcceleratorOptions options, const Training& training) {
  options.mixed_precision = training.precision;
  options.accumulation.num_steps = training.num_accumulation_steps;
  options.shard = {
      .stage = training.stage,
      .min_unit_numbers = 1,
      .cpu_offload = training.is_offloaded};
  Accelerator accelerator(options);
  set_seed(11);
  DataLoader dataloader(
      TensorDataset({torch::randn({48, 5}), torch::randn({48, 3})}),
      {.batch_size = 4, .shuffle = true});
  torch::nn::Sequential model(
      torch::nn::Linear(5, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
  optim::AdamW adamw(model->parameters(), {.lr = 0.05});
  auto [loader, net, optimizer] = accelerator.prepare(dataloader, model, adamw);
  std::string text = accelerator.device().str() + '\n';
  for (auto& batch : loader) {
    const auto guard = accelerator.accumulate(net);
    auto loss = torch::mse_loss(net(batch[0]), batch[1]);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
    text += to_text(accelerator.reduce(loss.detach(), ReduceOp::kMean));
  }
  for (const auto& parameter : net->parameters()) {
    TORCH_CHECK(parameter.device() == accelerator.device());
    if (training.is_offloaded && accelerator.num_processes() > 1) {
      const auto trained = net.engine().trained(parameter);
      TORCH_CHECK(trained.is_cpu());
      TORCH_CHECK(accelerator.device().is_cpu() || trained.is_pinned());
    }
  }
  auto weights = net.engine().whole_parameters(true);
  for (const auto& weight : weights.empty() ? net->parameters() : weights) {
    text += to_text(weight);
  }
  return text;
}

TEST(PretendAccelerator, TimesItsStepsByEventsWithoutWaitingForThem) {
  Accelerator accelerator;
  torch::nn::Linear model(2, 1);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, optimizer] = accelerator.prepare(model, sgd);
  const auto step = [&, &net = net, &optimizer = optimizer] {
    accelerator.backward(net(torch::ones({2}, accelerator.device())).sum());
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  pretend_is_behind() = true;
  step();
  step();
  EXPECT_LE(accelerator.step_times().num_steps, 1);
  pretend_is_behind() = false;
  const auto times = accelerator.step_times();
  EXPECT_EQ(times.num_steps, 3);
  EXPECT_GT(times.sum.forward, 0);
  EXPECT_GT(times.sum.backward, 0);
  EXPECT_GT(times.sum.optimizer, 0);
}

/// How many host messages there are per collective, and how many collectives of
/// devices.
std::string count_meetings(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  const auto& group = accelerator.process_group();
  const auto device = accelerator.device();
  std::string text;
  const auto count = [&](const char* name, const auto& call) {
    const auto gloo = to_c10d(group)->getBackend(c10::kCPU);
    const auto meetings = gloo->getSequenceNumberForGroup();
    const auto collectives = pretend_counts().collectives.load();
    call();
    text += std::string(name) + ' ' +
            std::to_string(gloo->getSequenceNumberForGroup() - meetings) + ' ' +
            std::to_string(pretend_counts().collectives - collectives) + '\n';
  };
  const auto value = torch::ones({3}, device);
  const std::vector<Tensor> batch(40, value);
  count("reduce", [&] { accelerator.reduce(value); });
  count("gather", [&] { accelerator.gather(value); });
  count("gather of 40", [&] { accelerator.gather(batch); });
  count("gather_for_metrics", [&] { accelerator.gather_for_metrics(batch); });
  return text;
}

const RankBodyRegistration kCountMeetings("count_meetings", count_meetings);

/// The error on a rank if rank 1 left its values on the CPU.
std::string mix_devices(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  auto value = torch::ones({3});
  if (accelerator.process_index() == 0) {
    value = value.to(accelerator.device());
  }
  try {
    accelerator.reduce(value);
  } catch (const MismatchError& error) {
    accelerator.wait_for_everyone(); // the group is still usable
    return error.what();
  }
  return "no error";
}

const RankBodyRegistration kMixDevices("mix_devices", mix_devices);

/// How much of a model's bytes a device holds, at most during prepare, and
/// afterwards, in percent.
std::string share_of_device(AcceleratorOptions options) {
  options.shard = {
      .stage = ShardStage::kParameters,
      .min_unit_numbers = 1,
      .ignored = {"norm"}};
  Accelerator accelerator(options);
  torch::nn::Sequential model;
  constexpr int kMany = 16;
  for (int i = 0; i < kMany; ++i) {
    model->push_back(torch::nn::Linear(128, 128));
  }
  model->push_back("norm", torch::nn::BatchNorm1d(128));
  int64_t num_bytes = 0;
  for (const auto& parameter : model->parameters()) {
    num_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  auto& counts = pretend_counts();
  const auto before = counts.bytes.load();
  counts.peak_bytes = before;
  auto net = accelerator.prepare(model);
  std::string text = "peak ";
  text += (counts.peak_bytes - before) * 100 < 70 * num_bytes ? "low" : "high";
  text += (counts.bytes - before) * 100 < 55 * num_bytes ? " low" : " high";
  for (const auto& tensor : {model->parameters(), model->buffers()}) {
    for (const auto& each : tensor) {
      TORCH_CHECK(each.device() == accelerator.device());
    }
  }
  return text;
}

const RankBodyRegistration kShareOfDevice("share_of_device", share_of_device);

/// The two parts of what `train` returns.
std::string place_of(const std::string& text) {
  return text.substr(0, text.find('\n'));
}
std::string numbers_of(const std::string& text) {
  return text.substr(text.find('\n') + 1);
}

std::string train_on_cpu(AcceleratorOptions options, const Training& training) {
  options.cpu = true;
  return train(std::move(options), training);
}

const bool kHasBodies = [] {
  for (const auto& training : kTrainings) {
    RankBodyRegistration("cpu_" + training.name, [=](const auto& options) {
      return train_on_cpu(options, training);
    });
    RankBodyRegistration("pretend_" + training.name, [=](const auto& options) {
      return train(options, training);
    });
  }
  return true;
}();

class Trainings : public ::testing::TestWithParam<Training> {};

TEST_P(Trainings, OfOneProcessAreTheCpus) {
  const auto before = pretend_counts().kernels.load();
  const auto expected = train_on_cpu({}, GetParam());
  EXPECT_EQ(pretend_counts().kernels, before);
  const auto found = train({}, GetParam());
  EXPECT_GT(pretend_counts().kernels, before);
  EXPECT_EQ(place_of(expected), "cpu");
  EXPECT_EQ(place_of(found), "pretend:0");
  EXPECT_EQ(numbers_of(found), numbers_of(expected));
}

TEST_P(Trainings, OfTwoProcessesAreTheCpus) {
  const auto& name = GetParam().name;
  const auto expected = run_body(RankKind::kProcesses, 2, "cpu_" + name);
  const auto found = run_body(RankKind::kProcesses, 2, "pretend_" + name);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(place_of(found[rank]), "pretend:" + std::to_string(rank));
    EXPECT_EQ(numbers_of(found[rank]), numbers_of(expected[rank]));
  }
}

// Half of it, and one of 16 units with its buffers.
TEST(PretendAccelerator, GetsOnlyItsShardOfAModel) {
  for (const auto& text :
       run_body(RankKind::kProcesses, 2, "share_of_device")) {
    EXPECT_EQ(text, "peak low low");
  }
}

TEST(PretendAccelerator, ExchangesOneHostMessagePerCollective) {
  for (const auto& text : run_body(RankKind::kProcesses, 2, "count_meetings")) {
    // The first two checks open the memory that ranks of one host share. Later
    // ones go through it and need no collective.
    EXPECT_EQ(
        text,
        "reduce 1 1\ngather 1 1\ngather of 40 0 40\n"
        "gather_for_metrics 0 40\n");
  }
}

TEST(PretendAccelerator, NamesARankWhoseValuesAreElsewhere) {
  for (const auto& text : run_body(RankKind::kProcesses, 2, "mix_devices")) {
    EXPECT_THAT(
        text,
        HasSubstr("reduce() with sum was called with shape [3] on rank 1"));
    EXPECT_THAT(text, HasSubstr("[3] on pretend on rank 0"));
  }
}

TEST(AcceleratorKinds, AreRegisteredOnceAndWhole) {
  EXPECT_THAT(
      [] {
        register_accelerator(
            {.type = c10::kCUDA, .distributed_type = "MULTI_GPU"});
      },
      ThrowsMessage<UsageError>(HasSubstr("'cuda' is already registered")));
  EXPECT_THAT(
      [] { register_accelerator({.type = c10::kXPU}); },
      ThrowsMessage<UsageError>(HasSubstr("'xpu' has no distributed_type")));
  for (const auto type :
       {c10::kCPU, c10::kMeta, static_cast<c10::DeviceType>(77)}) {
    EXPECT_THAT(
        [&] { register_accelerator({.type = type, .distributed_type = "X"}); },
        ThrowsMessage<UsageError>(HasSubstr("is not an accelerator")));
  }
}

TEST(PretendAccelerator, HasNoFp16AsItsRowSays) {
  EXPECT_THAT(
      [] { Accelerator({.mixed_precision = Precision::kFp16}); },
      ThrowsMessage<ConfigError>(HasSubstr("trains on pretend devices")));
}

TEST(PretendAccelerator, CopiesBatchesOnASideStream) {
  const auto before = pretend_counts().copies_on_side_streams.load();
  Accelerator accelerator;
  const auto data = torch::arange(12, torch::kFloat).reshape({6, 2});
  DataLoader dataloader(TensorDataset({data}), {.batch_size = 2});
  auto loader = accelerator.prepare(dataloader);
  std::vector<Tensor> batches;
  for (auto& batch : loader) {
    EXPECT_EQ(batch[0].device(), accelerator.device());
    batches.push_back(batch[0].cpu());
  }
  EXPECT_TRUE(torch::equal(torch::cat(batches), data));
  EXPECT_EQ(pretend_counts().copies_on_side_streams, before + 3);
}

TEST(PretendAccelerator, IsSeededAndEmptied) {
  set_seed(5);
  const c10::Device device(c10::kPrivateUse1, 1);
  EXPECT_EQ(at::globalContext().defaultGenerator(device).current_seed(), 5U);
  torch::ones({2}, device);
  const auto before = pretend_counts().emptied_caches.load();
  clear_device_cache();
  EXPECT_EQ(pretend_counts().emptied_caches, before + 1);
}

/// The gradient of a segment that backward recomputes outside of autocast.
std::string recomputed_gradient(const AcceleratorOptions& options) {
  set_seed(3);
  const auto input = torch::randn({4, 5});
  const auto weight = torch::randn({6, 5});
  const auto device = Accelerator(options).device();
  const auto x = input.to(device).requires_grad_(true);
  const auto w = weight.to(device);
  Tensor y;
  {
    const AutocastGuard guard(device.type(), Precision::kBf16);
    y = recompute(
        [&](const Tensor& value) {
          return torch::tanh(torch::linear(value, w));
        },
        x);
  }
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  y.sum().backward();
  return to_text(x.grad());
}

TEST(PretendAccelerator, RecomputesAsItComputed) {
  EXPECT_EQ(recomputed_gradient({}), recomputed_gradient({.cpu = true}));
}

INSTANTIATE_TEST_SUITE_P(
    PretendAccelerator,
    Trainings,
    ::testing::ValuesIn(kTrainings),
    [](const auto& info) { return info.param.name; });

} // namespace
} // namespace accelerate::testing
