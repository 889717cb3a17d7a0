// SPDX-License-Identifier: Apache-2.0
// Sharded training on a GPU: one process with NCCL, and two that share the GPU
// and use Gloo.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <sstream>

#include "accelerate/accelerate.h"
#include "gpu/nccl_ranks.h"
#include "support/rank_bodies.h"
#include "training/device/streams.h"
#include "training/parallel/engine.h"

namespace accelerate::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using torch::Tensor;

constexpr int64_t kBlocks = 5;

/// Keeps the current stream busy for some milliseconds with unused work.
void delay(c10::Device device) {
  const torch::NoGradGuard no_grad;
  auto big = torch::ones({2048, 2048}, device);
  for (int i = 0; i < 8; ++i) {
    big = torch::matmul(big, big).clamp(0, 1);
  }
}

void delay_collectives(c10::Device device) {
  const c10::StreamGuard guard(stream_for(StreamRole::kCollectives, device));
  delay(device);
}

struct StackImpl : torch::nn::Module {
  explicit StackImpl(int64_t width)
      : layers(register_module("layers", torch::nn::ModuleList())) {
    torch::manual_seed(3);
    for (int64_t i = 0; i < kBlocks; ++i) {
      layers->push_back(torch::nn::Sequential(
          torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})),
          torch::nn::Linear(width, width),
          torch::nn::GELU(),
          torch::nn::Linear(width, width)));
    }
  }
  Tensor forward(Tensor h, bool recomputes) {
    for (const auto& layer : *layers) {
      const auto block =
          std::dynamic_pointer_cast<torch::nn::SequentialImpl>(layer);
      if (has_delays) {
        delay(h.device());
        delay_collectives(h.device());
      }
      const auto run = [block](const Tensor& x) { return block->forward(x); };
      h = h + (recomputes ? recompute(run, h) : run(h));
      if (has_delays && h.requires_grad()) {
        h.register_hook([](const Tensor& gradient) {
          delay(gradient.device());
          delay_collectives(gradient.device());
        });
      }
    }
    return h;
  }
  torch::nn::ModuleList layers;
  bool has_delays = false;
};
TORCH_MODULE(Stack);

struct GpuCase {
  ShardStage stage = ShardStage::kNone;
  bool is_bf16 = false;
  bool recomputes = false;
  int64_t window = 1;
  bool has_delays = false;
  int64_t prefetch = 1;
  bool has_masters = false;
  bool is_offloaded = false;
};

AcceleratorOptions with(AcceleratorOptions options, const GpuCase& c) {
  options.shard = {
      .stage = c.stage,
      .min_unit_numbers = 1,
      .prefetch = c.prefetch,
      .cpu_offload = c.is_offloaded};
  options.accumulation.num_steps = c.window;
  options.master_weights = c.has_masters;
  if (c.is_bf16) {
    options.mixed_precision = Precision::kBf16;
  }
  return options;
}

Tensor input_of(c10::Device device, int rank, int step, int64_t width) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * rank + step));
  return torch::randn({4, width}, generator).to(device);
}

Tensor train(const AcceleratorOptions& base, const GpuCase& c) {
  const int64_t width = 192;
  Accelerator accelerator(with(base, c));
  Stack model(width);
  model->has_delays = c.has_delays;
  optim::AdamW adamw(model->parameters(), {.lr = 0.01});
  auto [net, opt] = accelerator.prepare(model, adamw);
  for (int step = 0; step < 4; ++step) {
    const auto window = accelerator.accumulate(net);
    const auto input = input_of(
        accelerator.device(), accelerator.process_index(), step, width);
    accelerator.backward(net(input, c.recomputes).square().mean());
    opt.step();
    opt.zero_grad();
  }
  auto weights = net.engine().whole_parameters(true);
  if (weights.empty()) {
    for (const auto& parameter : net->parameters()) {
      weights.push_back(net.engine().trained(parameter).detach().cpu());
    }
  }
  for (auto& weight : weights) {
    weight = weight.flatten();
  }
  return torch::cat(weights);
}

std::string compare(const AcceleratorOptions& options) {
  std::ostringstream problems;
  const auto expect_equal = [&](const GpuCase& c, const Tensor& expected) {
    const auto weights = train(options, c);
    const auto num = (weights != expected).sum().item<int64_t>();
    if (num != 0) {
      problems << "stage " << static_cast<int>(c.stage) << " bf16 " << c.is_bf16
               << " again " << c.recomputes << " window " << c.window
               << " delays " << c.has_delays << " prefetch " << c.prefetch
               << " masters " << c.has_masters << ": " << num << " of "
               << weights.numel() << " differ by up to "
               << (weights - expected).abs().max().item<double>() << '\n';
    }
  };
  for (const GpuCase& plain :
       {GpuCase{},
        GpuCase{.recomputes = true},
        GpuCase{.window = 2},
        GpuCase{.is_bf16 = true}}) {
    const auto expected = train(options, plain);
    GpuCase c = plain;
    for (const auto stage :
         {ShardStage::kOptimizer,
          ShardStage::kGradients,
          ShardStage::kParameters}) {
      c.stage = stage;
      expect_equal(c, expected);
    }
    // If streams are delayed, memory that is used too early shows.
    c.has_delays = true;
    expect_equal(c, expected);
    c.prefetch = 2;
    expect_equal(c, expected);
  }
  GpuCase masters{
      .stage = ShardStage::kParameters, .is_bf16 = true, .has_masters = true};
  const auto expected = train(options, masters);
  masters.has_delays = true;
  expect_equal(masters, expected);
  // AdamW rounds differently on the host.
  const GpuCase offloaded{
      .stage = ShardStage::kParameters,
      .has_delays = true,
      .is_offloaded = true};
  const auto off = (train(options, offloaded) - train(options, {})).abs().max();
  if (!(off.item<double>() < 1e-3)) {
    problems << "offloaded: off by " << off.item<double>() << '\n';
  }
  return problems.str();
}

c10::CachingDeviceAllocator::DeviceStats stats_of(c10::Device device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}

constexpr auto kAll =
    static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

/// The maximum in use since the previous call.
double peak(c10::Device device) {
  const auto bytes = stats_of(device).allocated_bytes[kAll].peak;
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  return static_cast<double>(bytes);
}

double in_use(c10::Device device) {
  // Memory used on several streams is released by the first allocation after
  // all of them are done.
  torch::cuda::synchronize();
  static_cast<void>(torch::empty({1}, device));
  return static_cast<double>(stats_of(device).allocated_bytes[kAll].current);
}

std::string measure(const AcceleratorOptions& base) {
  std::ostringstream problems;
  const auto expect_most = [&](const char* what, double got, double most) {
    if (got > most) {
      problems << what << ": " << got << " bytes, expected at most " << most
               << '\n';
    }
  };
  const int64_t width = 1024;
  const auto kStage = ShardStage::kParameters;
  for (const GpuCase& c :
       {GpuCase{.stage = kStage},
        GpuCase{.stage = kStage, .is_bf16 = true, .has_masters = true},
        GpuCase{.stage = kStage, .is_offloaded = true}}) {
    Accelerator accelerator(with(base, c));
    const auto device = accelerator.device();
    const auto first = torch::zeros({1}, device); // initialises the allocator
    const double before = in_use(device);
    peak(device); // excludes the peak of the previous case
    // A Gloo thread releases what it has sent a moment later.
    const auto expect_to_keep = [&](const char* what, double most) {
      if (!eventually([&] { return in_use(device) <= most; })) {
        expect_most(what, in_use(device), most);
      }
    };
    Stack model(width);
    optim::AdamW adamw(model->parameters(), {.lr = 0.01});
    auto [net, opt] = accelerator.prepare(model, adamw);
    const double unit = 4.0 * (2 * width * width + 4 * width);
    const double parts =
        c.is_offloaded ? 0 : kBlocks * unit / accelerator.num_processes();
    // Activations, and the gradient of one matrix as autograd makes it.
    const double slack = unit;
    const auto step = [&](int number) {
      const auto input =
          input_of(device, accelerator.process_index(), number, width);
      accelerator.backward(net(input, false).square().mean());
    };
    // The model comes from the host, one unit at a time.
    expect_most(
        "while it is prepared", peak(device), before + parts + unit + slack);
    expect_to_keep("at rest", before + parts + slack);
    // Libraries allocate their own memory in the first step.
    step(0);
    opt.step();
    opt.zero_grad();
    const double rest = in_use(device);
    for (int number = 1; number < 4; ++number) {
      peak(device);
      step(number);
      const double most_in_step = peak(device);
      // Two units; a shard is cast, or copied from the host, before it is sent.
      const double sent = 2 * unit / accelerator.num_processes();
      const double gathered = c.has_masters    ? unit + sent / 2
                              : c.is_offloaded ? 2 * unit + sent
                                               : 2 * unit;
      // Shards of gradients; one unit being gathered, one being reduced, one
      // just reduced, and the receive buffer.
      expect_most(
          "in a step",
          most_in_step,
          rest + gathered + parts + 4 * unit + slack);
      expect_to_keep("after backward", rest + parts + slack);
      opt.step();
      opt.zero_grad();
      expect_to_keep("after a step", rest + slack);
    }
  }
  return problems.str();
}

AcceleratorOptions by_nccl(AcceleratorOptions options) {
  options.connection.backend = Backend::kNccl;
  return options;
}

const RankBodyRegistration kCompare("sharded as ddp on a GPU", compare);
const RankBodyRegistration kCompareByNccl(
    "sharded as ddp by NCCL",
    [](const AcceleratorOptions& options) {
      return compare(by_nccl(options));
    });
const RankBodyRegistration kMeasure("memory of shards on a GPU", measure);
const RankBodyRegistration kMeasureByNccl(
    "memory of shards by NCCL",
    [](const AcceleratorOptions& options) {
      return measure(by_nccl(options));
    });

class ShardedGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

TEST_F(ShardedGpu, EqualsDdpWhereTwoProcessesShareIt) {
  EXPECT_THAT(
      run_body(RankKind::kProcesses, 2, "sharded as ddp on a GPU"),
      Each(IsEmpty()));
}

// Two gradients have one sum; more are added in an order of NCCL's choice.
TEST_F(ShardedGpu, EqualsDdpOfOneAndTwoProcessesByNccl) {
  for (const int num_ranks : {1, 2}) {
    const auto ranks = nccl_ranks(num_ranks);
    if (!ranks.missing.empty()) {
      GTEST_SKIP() << ranks.missing;
    }
    EXPECT_THAT(
        run_body(
            RankKind::kProcesses,
            num_ranks,
            "sharded as ddp by NCCL",
            ranks.variables),
        Each(IsEmpty()))
        << num_ranks << " ranks";
  }
}

TEST_F(ShardedGpu, HoldsShardsAtRestAndTwoUnitsInAStep) {
  EXPECT_THAT(
      run_body(RankKind::kProcesses, 2, "memory of shards on a GPU"),
      Each(IsEmpty()));
  EXPECT_THAT(
      run_body(RankKind::kProcesses, 1, "memory of shards by NCCL"),
      Each(IsEmpty()));
}

} // namespace
} // namespace accelerate::testing
