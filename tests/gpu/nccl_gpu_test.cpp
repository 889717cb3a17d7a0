// SPDX-License-Identifier: Apache-2.0
// Training on 2 and 4 NCCL ranks, compared with plain LibTorch in one process.
#include <gmock/gmock.h>
#include <signal.h>
#include <torch/torch.h>

#include <cstdlib>
#include <sstream>
#include <thread>

#include "accelerate/accelerate.h"
#include "gpu/nccl_ranks.h"
#include "training/parallel/engine.h"

namespace accelerate::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;
using namespace std::chrono_literals;

constexpr int64_t kWidth = 16;
constexpr int64_t kRows = 4;
constexpr double kMaxNorm = 0.1;
constexpr optim::AdamWOptions kAdamW{.lr = 0.01, .weight_decay = 0.1};
/// The sums of fp64 gradients are added in another order; a few steps of AdamW
/// amplify that, but stay far below this.
constexpr double kTolerance = 1e-9;
constexpr const char* kFolderVariable = "ACCELERATE_TEST_CHECKPOINT";

struct NetImpl : torch::nn::Module {
  NetImpl() : layers(register_module("layers", torch::nn::ModuleList())) {
    torch::manual_seed(3);
    for (int i = 0; i < 3; ++i) {
      layers->push_back(torch::nn::Linear(kWidth, kWidth));
    }
    to(torch::kDouble);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) {
      x = x + torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    }
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Net);

struct NcclCase {
  const char* name = "DDP";
  ShardStage stage = ShardStage::kNone;
  int64_t window = 1;
  int num_replicas = 1;
};

/// Every strategy, alone and with accumulation.
std::vector<NcclCase> cases_for(int num_ranks) {
  std::vector<NcclCase> all = {
      {},
      {.name = "stage 1", .stage = ShardStage::kOptimizer},
      {.name = "stage 2", .stage = ShardStage::kGradients},
      {.name = "stage 3", .stage = ShardStage::kParameters}};
  if (num_ranks >= 4) {
    all.push_back(
        {.name = "HSDP",
         .stage = ShardStage::kParameters,
         .num_replicas = num_ranks / 2});
  }
  for (size_t i = 0, num = all.size(); i < num; ++i) {
    all.push_back(all[i]);
    all.back().window = 2;
  }
  return all;
}

AcceleratorOptions with(AcceleratorOptions options, const NcclCase& c) {
  options.connection.backend = Backend::kNccl;
  options.accumulation.num_steps = c.window;
  options.shard = {.stage = c.stage, .min_unit_numbers = 1};
  options.parallelism.replicate =
      c.stage == ShardStage::kNone ? 0 : c.num_replicas;
  return options;
}

/// Rank `rank`'s rows of a micro-batch.
Tensor input_of(int rank, int64_t step, c10::Device device) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * rank + step));
  return torch::randn({kRows, kWidth}, generator, torch::kDouble).to(device);
}

Tensor loss_of(const Tensor& output) {
  return output.square().mean();
}

/// All parameters as one tensor on the CPU. A collective in stage 3.
template <typename Prepared>
Tensor whole_weights(Prepared& net) {
  std::vector<Tensor> flat;
  for (const auto& weight : net.engine().whole_parameters(true)) {
    flat.push_back(weight.detach().cpu().flatten());
  }
  if (flat.empty()) {
    for (const auto& weight : net->parameters()) {
      flat.push_back(weight.detach().cpu().flatten());
    }
  }
  return torch::cat(flat);
}

template <typename Net, typename Optimizer>
void train_step(
    Accelerator& accelerator,
    Net& net,
    Optimizer& optimizer,
    const Tensor& input) {
  const auto window = accelerator.accumulate(net);
  accelerator.backward(loss_of(net(input)));
  if (accelerator.sync_gradients()) {
    accelerator.clip_grad_norm_(net->parameters(), kMaxNorm);
  }
  optimizer.step();
  optimizer.zero_grad();
}

constexpr int64_t kMicroBatches = 8;

/// The weights after training with plain LibTorch in one process, with the
/// batches of all ranks joined.
Tensor train_plainly(int num_ranks, int64_t window, c10::Device device) {
  Net net;
  net->to(device);
  torch::optim::AdamW adamw(
      net->parameters(),
      torch::optim::AdamWOptions(kAdamW.lr).weight_decay(kAdamW.weight_decay));
  for (int64_t i = 0; i < kMicroBatches; ++i) {
    std::vector<Tensor> inputs;
    for (int rank = 0; rank < num_ranks; ++rank) {
      inputs.push_back(input_of(rank, i, device));
    }
    (loss_of(net(torch::cat(inputs))) / window).backward();
    if ((i + 1) % window == 0) {
      torch::nn::utils::clip_grad_norm_(net->parameters(), kMaxNorm);
      adamw.step();
      adamw.zero_grad();
    }
  }
  std::vector<Tensor> flat;
  for (const auto& weight : net->parameters()) {
    flat.push_back(weight.detach().cpu().flatten());
  }
  return torch::cat(flat);
}

std::string compare(const AcceleratorOptions& options) {
  std::ostringstream problems;
  for (const auto& c : cases_for(detect_topology().world_size)) {
    Accelerator accelerator(with(options, c));
    const auto group = accelerator.process_group();
    if (group.backend() != Backend::kNccl) {
      problems << "the backend is " << group.backend() << '\n';
    }
    Net model;
    optim::AdamW adamw(model->parameters(), kAdamW);
    auto [net, opt] = accelerator.prepare(model, adamw);
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      train_step(
          accelerator,
          net,
          opt,
          input_of(group.rank(), i, accelerator.device()));
    }
    const auto weights = whole_weights(net);
    const auto expected =
        train_plainly(group.world_size(), c.window, accelerator.device());
    const auto off = (weights - expected).abs().max().item<double>();
    if (!(off <= kTolerance)) {
      problems << c.name << ", window " << c.window << ": off by " << off
               << '\n';
    }
    const auto all = group.all_gather(weights.to(accelerator.device()));
    if (!all.eq(all[0]).all().item<bool>()) {
      problems << c.name << ", window " << c.window << ": ranks differ\n";
    }
  }
  return problems.str();
}

const RankBodyRegistration kCompare("trains as LibTorch by NCCL", compare);

std::string communicate(const AcceleratorOptions& options) {
  std::ostringstream problems;
  Accelerator accelerator(with(options, {}));
  const int rank = accelerator.process_index();
  const int size = accelerator.num_processes();
  // Rank r has r + 1 rows of r.
  std::vector<Tensor> parts;
  for (int i = 0; i < size; ++i) {
    parts.push_back(torch::full({i + 1, 2}, double(i)));
  }
  const auto expected = torch::cat(parts);
  for (const auto device : {accelerator.device(), c10::Device(c10::kCPU)}) {
    for (const auto dtype :
         {torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kLong}) {
      const auto expect =
          [&](const char* what, const Tensor& got, const Tensor& right) {
            if (got.device() != device || !torch::equal(got.cpu(), right)) {
              problems << what << ' ' << dtype << ' ' << device << ": " << got
                       << '\n';
            }
          };
      const auto own = parts[static_cast<size_t>(rank)].to(device, dtype);
      expect("gather", accelerator.gather(own), expected.to(dtype));
      const auto one = torch::full({3}, rank + 1, own.options());
      expect(
          "sum",
          accelerator.reduce(one, ReduceOp::kSum),
          torch::full({3}, size * (size + 1) / 2, dtype));
      auto last = one.clone();
      accelerator.broadcast(last, size - 1);
      expect("broadcast", last, torch::full({3}, size, dtype));
    }
  }
  return problems.str();
}

const RankBodyRegistration kCommunicate("collectives by NCCL", communicate);

/// Trains from `begin` to `end` on batches that are the same on all ranks, so
/// that the number of ranks does not matter. Returns the weights before and
/// after; saves or loads a checkpoint half-way.
RankBody train_over_a_stop(const NcclCase& c, bool resumes) {
  return [c, resumes](const AcceleratorOptions& options) {
    Accelerator accelerator(with(options, c));
    Net model;
    optim::AdamW adamw(model->parameters(), kAdamW);
    auto [net, opt] = accelerator.prepare(model, adamw);
    const auto train = [&, &net = net, &opt = opt](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        train_step(accelerator, net, opt, input_of(0, i, accelerator.device()));
      }
    };
    const std::filesystem::path folder = std::getenv(kFolderVariable);
    if (resumes) {
      accelerator.load_state(folder);
    } else {
      train(0, kMicroBatches / 2);
      accelerator.save_state(folder);
    }
    const auto at_stop = whole_weights(net);
    train(kMicroBatches / 2, kMicroBatches);
    return to_text(torch::stack({at_stop, whole_weights(net)}));
  };
}

const RankBodyRegistration kSaveDdp(
    "DDP saves by NCCL",
    train_over_a_stop({}, false));
const RankBodyRegistration kResumeDdp(
    "DDP resumes by NCCL",
    train_over_a_stop({}, true));
const NcclCase kStage3{.name = "stage 3", .stage = ShardStage::kParameters};
const RankBodyRegistration kSaveStage3(
    "stage 3 saves by NCCL",
    train_over_a_stop(kStage3, false));
const RankBodyRegistration kResumeStage3(
    "stage 3 resumes by NCCL",
    train_over_a_stop(kStage3, true));

/// Trains; in step 3 the last rank calls `last` first.
RankBody train_until(const NcclCase& c, std::function<void()> last) {
  return [c, last](AcceleratorOptions options) {
    options.connection.hang_message_after = 500ms;
    Accelerator accelerator(with(options, c));
    Net model;
    optim::AdamW adamw(model->parameters(), kAdamW);
    auto [net, opt] = accelerator.prepare(model, adamw);
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      if (i == 3 && accelerator.is_last_process()) {
        last();
      }
      train_step(accelerator, net, opt, input_of(0, i, accelerator.device()));
      // Waits for the device, as a loop that logs its loss does.
      torch::cuda::synchronize();
    }
    return std::string();
  };
}

void be_killed() {
  kill(getpid(), SIGKILL);
}

void be_late() {
  std::this_thread::sleep_for(5s);
}

const RankBodyRegistration kKilledDdp(
    "DDP is killed by NCCL",
    train_until({}, be_killed));
const RankBodyRegistration kKilledStage3(
    "stage 3 is killed by NCCL",
    train_until(kStage3, be_killed));
const RankBodyRegistration kLateDdp(
    "DDP is late by NCCL",
    train_until({}, be_late));
const RankBodyRegistration kLateStage3(
    "stage 3 is late by NCCL",
    train_until(kStage3, be_late));

class NcclGpu : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ranks_ = nccl_ranks(GetParam());
    if (!ranks_.missing.empty()) {
      GTEST_SKIP() << ranks_.missing;
    }
  }
  std::vector<std::string> run(
      int num_ranks,
      const std::string& body,
      const Variables& more = {}) const {
    Variables variables = ranks_.variables;
    variables.insert(more.begin(), more.end());
    return run_body(RankKind::kProcesses, num_ranks, body, variables);
  }
  NcclRanks ranks_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclGpu, ::testing::Values(1, 2, 4));

TEST_P(NcclGpu, TrainsAsLibTorchInOneProcess) {
  EXPECT_THAT(run(GetParam(), "trains as LibTorch by NCCL"), Each(IsEmpty()));
}

TEST_P(NcclGpu, CommunicatesTensorsOfBothDevices) {
  EXPECT_THAT(run(GetParam(), "collectives by NCCL"), Each(IsEmpty()));
}

TEST_P(NcclGpu, ResumesOnHalfAsManyRanks) {
  const int num_after = std::max(1, GetParam() / 2);
  for (const std::string name : {"DDP", "stage 3"}) {
    const TempDir folder;
    const Variables variables = {
        {kFolderVariable, (folder.path() / "state").string()}};
    const auto before =
        from_text(run(GetParam(), name + " saves by NCCL", variables)[0])
            .view({2, -1});
    for (const auto& text :
         run(num_after, name + " resumes by NCCL", variables)) {
      const auto after = from_text(text).view({2, -1});
      EXPECT_TRUE(torch::equal(after[0], before[0])) << name;
      EXPECT_LE((after[1] - before[1]).abs().max().item<double>(), kTolerance)
          << name;
    }
  }
}

TEST_P(NcclGpu, EndsWhenARankIsKilled) {
  const int last = GetParam() - 1;
  for (const std::string name : {"DDP", "stage 3"}) {
    const auto result =
        launch_body(GetParam(), name + " is killed by NCCL", ranks_.variables);
    EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
    EXPECT_THAT(result.err, HasSubstr("[launch] Rank " + std::to_string(last)));
  }
}

class SeveralNcclGpu : public NcclGpu {};
INSTANTIATE_TEST_SUITE_P(Ranks, SeveralNcclGpu, ::testing::Values(2, 4));

TEST_P(SeveralNcclGpu, ReportsTheRankThatTheOthersWaitFor) {
  const auto last = "rank " + std::to_string(GetParam() - 1) + ": in user code";
  for (const std::string name : {"DDP", "stage 3"}) {
    const auto result =
        launch_body(GetParam(), name + " is late by NCCL", ranks_.variables);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("[hang]")) << name;
    EXPECT_THAT(result.err, HasSubstr(last)) << name;
  }
}

} // namespace
} // namespace accelerate::testing
