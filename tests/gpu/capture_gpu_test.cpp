// SPDX-License-Identifier: Apache-2.0
// Captured steps compared with eager steps, from the same weights and random
// numbers.
#include <accelerate/accelerate.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <optional>
#include <sstream>

#include "accelerate/distributed/c10d.h"
#include "gpu/nccl_ranks.h"
#include "support/rank_bodies.h"
#include "support/state.h"
#include "support/temp_dir.h"
#include "training/comm/hang_exchange.h"

namespace accelerate {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(16, 32))),
        norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})))),
        drop(register_module("drop", torch::nn::Dropout(0.3))),
        second(register_module("second", torch::nn::Linear(32, 1))) {}
  Tensor forward(const Tensor& x) {
    return second(drop(torch::gelu(norm(first(x)))));
  }
  torch::nn::Linear first;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};
TORCH_MODULE(Net);

struct Setting {
  bool is_captured = true;
  AcceleratorOptions options = {};
  CaptureOptions capture = {};
  int64_t num_steps = 12;
  /// Rows of the batch of each step.
  std::function<int64_t(int64_t)> num_rows = [](int64_t) { return 8; };
  /// Runs inside the function, on the host.
  std::function<void()> inside = [] {};
  /// After this many steps: load the state that was saved two steps before.
  std::optional<int64_t> load_at = {};
  /// After this many steps: save a checkpoint, and resume from it with another
  /// Accelerator, model and function.
  std::optional<int64_t> resume_at = {};
};

struct Record {
  std::vector<double> losses;
  std::vector<Tensor> parameters;
  /// After each step, with fp16.
  std::vector<double> scales;
  size_t num_skipped = 0;
  size_t num_graphs = 0, num_replays = 0;
  /// Collectives of a process group: by our count, and by NCCL's.
  uint64_t num_counted = 0, num_begun_by_nccl = 0;
  std::string refusal;
};

/// Steps `begin` to `end`, from `folder` where it is one, into `record`.
void train_part(
    const Setting& setting,
    int64_t begin,
    int64_t end,
    const std::filesystem::path& folder,
    Record& record) {
  torch::manual_seed(11);
  Net model;
  optim::AdamW adamw(model->parameters(), {.lr = 0.01});
  Accelerator accelerator(setting.options);
  auto [net, opt] = accelerator.prepare(model, adamw);
  auto scheduler = accelerator.prepare(
      Scheduler(adamw, StepLR{.step_size = 3, .gamma = 0.5}));
  const auto function = [&, &net = net, &opt = opt](
                            const Tensor& x, const Tensor& y) {
    auto loss = torch::mse_loss(net(x), y);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model->parameters(), 0.7);
    opt.step();
    opt.zero_grad();
    setting.inside();
    return loss;
  };
  auto step = accelerator.capture(function, setting.capture);
  if (begin > 0) {
    accelerator.load_state(folder);
  }
  uint64_t num_counted_before = 0, num_begun_before = 0;
  if (const auto carrier = to_c10d(accelerator.process_group())) {
    num_counted_before = collective_counter(carrier)().value_or(0);
    num_begun_before =
        carrier->getBackend(torch::kCUDA)->getSequenceNumberForGroup();
  }
  StateDict saved;
  for (int64_t i = begin; i < end; ++i) {
    auto generator = at::detail::createCPUGenerator(
        static_cast<uint64_t>(i + 1000 * accelerator.process_index()));
    const auto x =
        torch::randn({setting.num_rows(i), 16}, generator).to(torch::kCUDA);
    const auto y = x.sum(1, true);
    const auto window = accelerator.accumulate(net);
    const auto loss = setting.is_captured ? step(x, y) : function(x, y);
    scheduler.step();
    record.losses.push_back(loss.item<double>());
    record.num_skipped += accelerator.optimizer_step_was_skipped();
    if (setting.options.mixed_precision == Precision::kFp16) {
      record.scales.push_back(
          accelerator.state().state_dict().get<double>("scaler.scale"));
    }
    if (setting.load_at && i + 2 == *setting.load_at) {
      saved = testing::copy_of(accelerator.state().state_dict());
    }
    if (setting.load_at && i == *setting.load_at) {
      accelerator.state().load_state_dict(saved);
    }
  }
  if (const auto carrier = to_c10d(accelerator.process_group())) {
    // Of a connection shared with other trainings.
    record.num_counted +=
        collective_counter(carrier)().value_or(0) - num_counted_before;
    record.num_begun_by_nccl +=
        carrier->getBackend(torch::kCUDA)->getSequenceNumberForGroup() -
        num_begun_before;
  }
  record.num_replays += step.num_replays();
  record.refusal += step.refusal();
  record.num_graphs = step.num_graphs();
  if (end < setting.num_steps) {
    accelerator.save_state(folder);
    return;
  }
  const auto state = accelerator.state().state_dict();
  for (const auto& item : model->named_parameters()) {
    record.parameters.push_back(
        state.get<Tensor>("model." + item.key()).clone());
  }
}

Record train(const Setting& setting) {
  const testing::TempDir folder;
  const auto checkpoint =
      testing::folder_of_ranks().value_or(folder.path()) / "checkpoint";
  Record record;
  const int64_t middle = setting.resume_at.value_or(setting.num_steps);
  train_part(setting, 0, middle, checkpoint, record);
  if (middle < setting.num_steps) {
    train_part(setting, middle, setting.num_steps, checkpoint, record);
  }
  return record;
}

/// The differences between a captured and an eager run, step by step and at the
/// end.
struct Differences {
  Record captured, plain;
  double of_losses = 0, of_parameters = 0;
};

Differences train_both(Setting setting) {
  Differences differences;
  differences.captured = train(setting);
  setting.is_captured = false;
  differences.plain = train(setting);
  const auto& [captured, plain] =
      std::tie(differences.captured, differences.plain);
  for (size_t i = 0; i < plain.losses.size(); ++i) {
    differences.of_losses = std::max(
        differences.of_losses, std::abs(captured.losses[i] - plain.losses[i]));
  }
  for (size_t i = 0; i < plain.parameters.size(); ++i) {
    const auto off = (captured.parameters[i] - plain.parameters[i]).abs();
    differences.of_parameters = std::max(
        differences.of_parameters,
        (off / (1 + plain.parameters[i].abs())).max().item<double>());
  }
  return differences;
}

class CaptureOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no GPU";
    }
  }
  /// Trains twice. A rate is a float in a captured step and a double in
  /// another one, and matrix products may split their sums differently.
  static Record expect_alike(Setting setting, double tolerance = 1e-4) {
    const auto differences = train_both(setting);
    EXPECT_LE(differences.of_losses, tolerance);
    EXPECT_LE(differences.of_parameters, tolerance);
    EXPECT_EQ(differences.captured.scales, differences.plain.scales);
    EXPECT_EQ(differences.captured.num_skipped, differences.plain.num_skipped);
    return differences.captured;
  }
};

TEST_F(CaptureOnGpu, AgreesWithDropoutClippingAndASchedule) {
  const auto captured = expect_alike({});
  EXPECT_EQ(captured.num_graphs, 1u);
  EXPECT_EQ(captured.num_replays, 10u);
  EXPECT_EQ(captured.refusal, "");
}

TEST_F(CaptureOnGpu, AgreesInBf16AndWithMasterWeights) {
  // A loss of about 16 in bf16.
  expect_alike({.options = {.mixed_precision = Precision::kBf16}}, 0.05);
  const auto captured = expect_alike(
      {.options =
           {.mixed_precision = Precision::kBf16, .master_weights = true}},
      0.05);
  EXPECT_EQ(captured.num_replays, 10u);
}

TEST_F(CaptureOnGpu, RecordsAGraphPerShape) {
  const auto captured =
      expect_alike({.num_rows = [](int64_t i) { return i % 3 == 0 ? 5 : 8; }});
  EXPECT_EQ(captured.num_graphs, 2u);
  EXPECT_EQ(captured.num_replays, 8u);
}

TEST_F(CaptureOnGpu, KeepsAtMostMaxGraphs) {
  const auto captured = expect_alike(
      {.capture = {.num_warmup = 1, .max_graphs = 1},
       .num_rows = [](int64_t i) { return i < 6 ? 5 : 8; }});
  EXPECT_EQ(captured.num_graphs, 1u);
  EXPECT_EQ(captured.num_replays, 10u);
}

TEST_F(CaptureOnGpu, AccumulatesGradients) {
  for (const bool masters : {false, true}) {
    Setting setting{.num_steps = 24, .num_rows = [](int64_t i) {
                      return i % 5 == 0 ? 5 : 8;
                    }};
    setting.options.accumulation.num_steps = 3;
    if (masters) {
      setting.options.mixed_precision = Precision::kBf16;
      setting.options.master_weights = true;
    }
    const auto captured = expect_alike(setting, masters ? 0.05 : 1e-4);
    EXPECT_EQ(captured.refusal, "");
    EXPECT_GT(captured.num_replays, 8u);
  }
}

TEST_F(CaptureOnGpu, ResumesFromLoadedState) {
  const auto captured = expect_alike({.load_at = 7});
  EXPECT_EQ(captured.refusal, "");
  EXPECT_EQ(captured.num_graphs, 1u);
}

TEST_F(CaptureOnGpu, ResumesFromACheckpointInAnotherRun) {
  const auto whole = train({});
  const auto captured = expect_alike({.resume_at = 6});
  // Four replays of each of the two runs.
  EXPECT_EQ(captured.num_replays, 8u);
  for (size_t i = 0; i < whole.losses.size(); ++i) {
    EXPECT_NEAR(captured.losses[i], whole.losses[i], 1e-4) << i;
  }
}

/// A scale that overflows at first and grows again after two steps: some
/// warm-up steps and some replays are skipped.
AcceleratorOptions fp16_options() {
  AcceleratorOptions options;
  options.mixed_precision = Precision::kFp16;
  options.scaler = {.init_scale = 1 << 21, .growth_interval = 2};
  return options;
}

TEST_F(CaptureOnGpu, ScalesLossesOfFp16WithoutTheHost) {
  // Sums of 32 products of size 1 in fp16; losses of about 16.
  const auto captured =
      expect_alike({.options = fp16_options(), .num_steps = 20}, 0.05);
  EXPECT_EQ(captured.refusal, "");
  EXPECT_EQ(captured.num_replays, 18u);
  EXPECT_GT(captured.num_skipped, 2u);
  EXPECT_LT(captured.num_skipped, 20u);
  EXPECT_NE(captured.scales.front(), captured.scales.back());
}

TEST_F(CaptureOnGpu, ScalesFp16LossesDuringAccumulationAndAfterACheckpoint) {
  auto options = fp16_options();
  options.accumulation.num_steps = 2;
  const auto captured = expect_alike(
      {.options = options, .num_steps = 32, .resume_at = 16}, 0.05);
  EXPECT_EQ(captured.refusal, "");
  EXPECT_EQ(captured.num_graphs, 2u);
  EXPECT_GT(captured.num_replays, 20u);
  EXPECT_GT(captured.num_skipped, 2u);
}

/// Compares captured steps whose gradients are synchronised with NCCL; returns
/// the problems, or an empty string.
std::string compare_by_nccl(
    const char* name,
    Setting setting,
    double tolerance,
    size_t min_replays) {
  setting.options.connection.backend = Backend::kNccl;
  const auto differences = train_both(setting);
  const auto& [captured, plain] =
      std::tie(differences.captured, differences.plain);
  std::ostringstream problems;
  const auto expect = [&](bool is_right, const std::string& what) {
    if (!is_right) {
      problems << name << ": " << what << '\n';
    }
  };
  expect(captured.refusal.empty(), captured.refusal);
  expect(
      captured.num_replays >= min_replays,
      std::to_string(captured.num_replays) + " replays");
  expect(
      differences.of_losses <= tolerance &&
          differences.of_parameters <= tolerance,
      "off by " + std::to_string(differences.of_losses) + " and " +
          std::to_string(differences.of_parameters));
  expect(captured.scales == plain.scales, "other scales");
  expect(captured.num_skipped == plain.num_skipped, "other steps left out");
  // NCCL counts collectives while steps are recorded, but not when they are
  // replayed, so all collectives of steps that were only replayed are missing
  // there.
  expect(
      captured.num_counted == plain.num_counted,
      std::to_string(captured.num_counted) + " collectives, and not " +
          std::to_string(plain.num_counted));
  expect(
      captured.num_begun_by_nccl < plain.num_begun_by_nccl,
      "NCCL was asked at every step");
  if (setting.options.accumulation.num_steps == 1 && !setting.load_at &&
      !setting.resume_at) {
    expect(
        plain.num_begun_by_nccl - captured.num_begun_by_nccl ==
            captured.num_replays - captured.num_graphs,
        "other than one bucket in each graph");
  }
  return problems.str();
}

const testing::RankBodyRegistration kCapturedByNccl(
    "captured by NCCL",
    [](const AcceleratorOptions& options) {
      const auto rows = [](int64_t i) { return i % 5 == 0 ? 5 : 8; };
      AcceleratorOptions windows = options;
      windows.accumulation.num_steps = 4;
      AcceleratorOptions masters = options;
      masters.mixed_precision = Precision::kBf16;
      masters.master_weights = true;
      AcceleratorOptions masters_in_windows = masters;
      masters_in_windows.accumulation.num_steps = 3;
      AcceleratorOptions each_batch = masters_in_windows;
      each_batch.accumulation.sync_each_batch = true;
      AcceleratorOptions copied = options;
      copied.ddp.gradient_as_bucket_view = false;
      AcceleratorOptions fp16 = options;
      fp16.mixed_precision = Precision::kFp16;
      fp16.scaler = {.init_scale = 1 << 21, .growth_interval = 2};
      constexpr double kFp32 = 1e-4, kReduced = 0.05;
      std::string problems;
      const auto add = [&](const char* name,
                           const AcceleratorOptions& own,
                           double tolerance,
                           size_t min_replays,
                           std::function<int64_t(int64_t)> num_rows) {
        problems += compare_by_nccl(
            name,
            {.options = own, .num_steps = 24, .num_rows = std::move(num_rows)},
            tolerance,
            min_replays);
      };
      const auto same = Setting().num_rows;
      add("plain", options, kFp32, 22, same);
      add("shapes", options, kFp32, 20, rows);
      add("copied out of buckets", copied, kFp32, 22, same);
      add("windows", windows, kFp32, 12, same);
      add("windows and shapes", windows, kFp32, 6, rows);
      add("masters", masters, kReduced, 22, same);
      add("masters in windows", masters_in_windows, kReduced, 12, rows);
      add("masters that meet at once", each_batch, kReduced, 12, rows);
      add("fp16", fp16, kReduced, 20, same);
      // A failed step, a loaded state, and another run cause new graphs.
      problems += compare_by_nccl(
          "loads", {.options = options, .load_at = 7}, kFp32, 4);
      problems += compare_by_nccl(
          "resumes", {.options = options, .resume_at = 6}, kFp32, 6);
      if (detect_topology().world_size > 1) {
        return problems;
      }
      // The average over one rank is its own value: as without a group, except
      // for the products that cuBLAS chooses by the alignment of gradients.
      const auto alone = train({.num_steps = 24});
      auto by_nccl = options;
      by_nccl.connection.backend = Backend::kNccl;
      const auto met = train({.options = by_nccl, .num_steps = 24});
      for (size_t i = 0; i < alone.parameters.size(); ++i) {
        const auto off = (alone.parameters[i] - met.parameters[i]).abs().max();
        if (!(off.item<double>() <= kFp32)) {
          problems += "off by " + std::to_string(off.item<double>()) +
                      " from what is trained alone\n";
        }
      }
      return problems;
    });

class CaptureOnNcclRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CaptureOnNcclRanks, ::testing::Values(1, 2, 4));

TEST_P(CaptureOnNcclRanks, RecordsTheAllReduceOfGradients) {
  const auto ranks = testing::nccl_ranks(GetParam());
  if (!ranks.missing.empty()) {
    GTEST_SKIP() << ranks.missing;
  }
  EXPECT_THAT(
      testing::run_body(
          testing::RankKind::kProcesses,
          GetParam(),
          "captured by NCCL",
          ranks.variables),
      Each(IsEmpty()));
}

const testing::RankBodyRegistration kRefusedByNccl(
    "not captured by NCCL",
    [](AcceleratorOptions options) {
      options.connection.backend = Backend::kNccl;
      options.ddp.find_unused_parameters = true;
      const auto differences = train_both({.options = options});
      std::ostringstream problems;
      const auto& refusal = differences.captured.refusal;
      if (refusal.find("find_unused_parameters needs the host") != 0 ||
          differences.captured.num_replays != 0) {
        problems << differences.captured.num_replays << " replays, " << refusal
                 << '\n';
      }
      if (!(differences.of_losses <= 1e-4 &&
            differences.of_parameters <= 1e-4)) {
        problems << "off by " << differences.of_losses << " and "
                 << differences.of_parameters << '\n';
      }
      return problems.str();
    });

TEST_F(CaptureOnGpu, FallsBackToEagerWhenNcclNeedsTheHost) {
  EXPECT_THAT(
      testing::run_body(
          testing::RankKind::kProcesses, 1, "not captured by NCCL"),
      Each(IsEmpty()));
}

TEST_F(CaptureOnGpu, RejectsAFunctionThatWaits) {
  ::testing::internal::CaptureStderr();
  const auto captured = expect_alike(
      {.inside = [] { torch::ones({1}, torch::kCUDA).item<float>(); }});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("[capture] The step is not recorded: it waits for the device"));
  EXPECT_EQ(captured.num_replays, 0u);
}

TEST_F(CaptureOnGpu, AllowsAModelToWaitDuringWarmUp) {
  // The captured run comes first.
  int64_t num_calls = 0;
  const auto captured = expect_alike({.inside = [&] {
    if (num_calls++ == 0) {
      torch::ones({1}, torch::kCUDA).item<float>();
    }
  }});
  EXPECT_EQ(captured.refusal, "");
  EXPECT_GT(captured.num_replays, 0u);
}

TEST_F(CaptureOnGpu, RejectsWorkThatCudaCannotRecord) {
  ::testing::internal::CaptureStderr();
  const auto captured =
      expect_alike({.inside = [] { torch::cuda::synchronize(); }});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(), HasSubstr("[capture] "));
  EXPECT_EQ(captured.num_replays, 0u);
  EXPECT_NE(captured.refusal, "");
}

TEST_F(CaptureOnGpu, RejectsHostOptimizersAndCpuInputs) {
  ::testing::internal::CaptureStderr();
  torch::nn::Linear model(1, 1);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  Accelerator accelerator;
  auto [net, opt] = accelerator.prepare(model, sgd);
  EXPECT_THAT(
      accelerator.capture([](const Tensor& x) { return x; }).refusal(),
      HasSubstr("is not AdamW, Adam or SGD from accelerate::optim"));
  Accelerator other;
  auto step = other.capture([](const Tensor& x) { return x + 1; });
  EXPECT_TRUE(torch::equal(step(torch::ones({1})), torch::full({1}, 2.0f)));
  EXPECT_THAT(step.refusal(), HasSubstr("is on cpu"));
  ::testing::internal::GetCapturedStderr();
}

} // namespace
} // namespace accelerate
