// SPDX-License-Identifier: Apache-2.0
// Checkpointed segments give bit-identical gradients to the plain call, and use
// the predicted memory.
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "accelerate/accelerate.h"
#include "support/rank_bodies.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

struct BlockImpl : torch::nn::Module {
  BlockImpl() : first(6, 6), dropout(0.4), second(6, 6) {
    register_module("first", first);
    register_module("dropout", dropout);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) {
    return x + second(dropout(torch::tanh(first(x))));
  }
  torch::nn::Linear first;
  torch::nn::Dropout dropout;
  torch::nn::Linear second;
};
TORCH_MODULE(Block);

enum class How { kPlain, kSegments, kNested };

struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(How how) : how(how) {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
  }
  Tensor forward(Tensor x) {
    if (how == How::kNested) {
      return recompute(
          [this](Tensor h) {
            for (auto& block : blocks) {
              h = recompute(block, h);
            }
            return h;
          },
          x);
    }
    for (auto& block : blocks) {
      x = how == How::kPlain ? block(x) : recompute(block, x);
    }
    return x;
  }
  How how;
  std::vector<Block> blocks;
};
TORCH_MODULE(Chain);

/// Output, gradient of the input if it has one, gradients of the weights, and a
/// random number drawn afterwards.
std::vector<Tensor> gradients(How how, Precision precision, bool input_grad) {
  torch::manual_seed(4);
  Chain chain(how);
  auto x = torch::randn({5, 6}).requires_grad_(input_grad);
  Tensor output;
  {
    const AutocastGuard guard(at::kCPU, precision);
    output = chain(x);
  }
  const auto after = torch::rand({2});
  output.to(torch::kFloat).square().sum().backward();
  std::vector<Tensor> result = {
      output.detach(), x.grad(), after, torch::rand({2})};
  for (const auto& parameter : chain->parameters()) {
    result.push_back(parameter.grad());
  }
  return result;
}

TEST(Checkpoint, GivesTheGradientsOfThePlainCall) {
  for (const auto precision : {Precision::kNo, Precision::kBf16}) {
    for (const bool input_grad : {false, true}) {
      const auto plain = gradients(How::kPlain, precision, input_grad);
      for (const How how : {How::kSegments, How::kNested}) {
        const auto got = gradients(how, precision, input_grad);
        for (size_t i = 0; i < plain.size(); ++i) {
          ASSERT_EQ(got[i].defined(), plain[i].defined()) << i;
          EXPECT_TRUE(!got[i].defined() || got[i].equal(plain[i])) << i;
        }
      }
    }
  }
}

TEST(Checkpoint, UsesTheMaskOfForwardWhileAnotherThreadDraws) {
  std::atomic<bool> is_done = false;
  std::thread other([&] {
    while (!is_done) {
      torch::rand({1});
    }
  });
  torch::nn::Dropout dropout(0.5);
  const auto mask_of = [&](Tensor h) {
    // Several operators that draw random numbers.
    h = dropout(h) + torch::rand_like(h);
    h = std::get<0>(torch::native_dropout(h, 0.5, true));
    return h * torch::randn({64});
  };
  int num_different = 0;
  for (int i = 0; i < 100; ++i) {
    auto x = torch::ones({64}).requires_grad_(true);
    // The gradient of a product is the other factor, which forward drew.
    Tensor seen;
    const auto y = recompute(
        [&](Tensor h) {
          const auto drawn = mask_of(torch::ones({64}));
          if (!seen.defined()) {
            seen = drawn;
          }
          return h * drawn;
        },
        x);
    y.sum().backward();
    num_different += !x.grad().equal(seen);
  }
  is_done = true;
  other.join();
  EXPECT_EQ(num_different, 0);
}

std::string train(AcceleratorOptions options, How how, bool static_graph) {
  options.cpu = true;
  options.ddp.static_graph = static_graph;
  Accelerator accelerator(options);
  set_seed(6);
  Chain model(how);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, optimizer] = accelerator.prepare(model, sgd);
  set_seed(7, {.offset = static_cast<uint64_t>(accelerator.process_index())});
  for (int step = 0; step < 3; ++step) {
    Tensor output;
    {
      const AutocastGuard guard(
          at::kCPU, step == 2 ? Precision::kBf16 : Precision::kNo);
      output = net(torch::randn({5, 6}));
    }
    accelerator.backward(output.to(torch::kFloat).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  std::string text;
  for (const auto& parameter : model->parameters()) {
    text += to_text(parameter);
  }
  return text;
}

const RankBodyRegistration kPlain("plain", [](const auto& options) {
  return train(options, How::kPlain, false);
});
const RankBodyRegistration kSegments("segments", [](const auto& options) {
  return train(options, How::kSegments, false);
});
const RankBodyRegistration kStatic("static", [](const auto& options) {
  return train(options, How::kNested, true);
});

TEST(Checkpoint, TrainsBitForBitUnderDdp) {
  const auto plain = run_body(RankKind::kProcesses, 2, "plain");
  EXPECT_EQ(plain[0], plain[1]);
  for (const char* name : {"segments", "static"}) {
    EXPECT_EQ(run_body(RankKind::kProcesses, 2, name), plain) << name;
  }
}

struct SharedImpl : torch::nn::Module {
  SharedImpl(bool again, bool twice) : again(again), twice(twice) {
    register_module("layer", layer);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) {
    const auto use = [this](const Tensor& h) { return torch::tanh(layer(h)); };
    auto h = again ? recompute(use, x) : use(x);
    h = again && twice ? recompute(use, h) : use(h);
    return last(h);
  }
  torch::nn::Linear layer = torch::nn::Linear(3, 3);
  torch::nn::Linear last = torch::nn::Linear(3, 1);
  bool again;
  bool twice;
};
TORCH_MODULE(Shared);

TEST(Checkpoint, OfAWeightThatIsUsedTwiceIsRefusedUnlessTheGraphIsStatic) {
  for (const bool twice : {true, false}) {
    for (const auto stage : {ShardStage::kNone, ShardStage::kGradients}) {
      for (const bool is_static : {false, true}) {
        run_ranks(2, [&](ProcessGroup group) {
          const auto gradient = [&](bool again) {
            Accelerator accelerator(
                {.cpu = true,
                 .ddp = {.static_graph = is_static},
                 .shard = {.stage = stage},
                 .process_group = group});
            Shared model(again, twice);
            {
              const torch::NoGradGuard no_grad;
              for (auto& p : model->parameters()) {
                p.fill_(0.3);
              }
            }
            torch::optim::SGD sgd(model->parameters(), 1);
            auto [net, optimizer] = accelerator.prepare(model, sgd);
            for (int i = 0; i < 2; ++i) {
              const auto x = torch::full({2, 3}, group.rank() + 0.5 * i);
              accelerator.backward(net(x).sum());
              optimizer.step();
              optimizer.zero_grad();
            }
            return model->layer->weight.detach().clone();
          };
          if (stage == ShardStage::kNone && !is_static) {
            EXPECT_THAT(
                [&] { gradient(true); },
                ThrowsMessage<UsageError>(HasSubstr(
                    "received a second gradient in one backward pass")));
          } else {
            EXPECT_LT(
                (gradient(true) - gradient(false)).abs().max().item<double>(),
                1e-6);
          }
        });
      }
    }
  }
}

struct Pair {
  Tensor left, right;
  int count = 0;
};
auto tensor_fields(Pair& pair) {
  return std::tie(pair.left, pair.right);
}

TEST(Checkpoint, TakesAndGivesTreesAndOtherValues) {
  const auto w = torch::full({2}, 3.0, torch::requires_grad());
  const auto function = [&](const Pair& in, int power, std::string name) {
    return std::make_tuple(
        Pair{in.left * w, in.right.defined() ? in.right : in.left, power},
        torch::arange(3),
        name + "!");
  };
  const auto left = torch::ones({2}, torch::requires_grad());
  const auto [pair, whole, text] =
      recompute(function, Pair{left, Tensor(), 5}, 7, std::string("so"));
  EXPECT_EQ(pair.count, 7);
  EXPECT_EQ(text, "so!");
  EXPECT_TRUE(whole.equal(torch::arange(3)));
  EXPECT_FALSE(whole.requires_grad());
  (pair.left * 2 + pair.right).sum().backward();
  EXPECT_TRUE(w.grad().equal(torch::full({2}, 2.0)));
  EXPECT_TRUE(left.grad().equal(torch::full({2}, 7.0)));
}

TEST(Checkpoint, KeepsAutocastsCacheFromCuttingGradients) {
  torch::nn::Linear layer(4, 4);
  {
    const AutocastGuard guard(at::kCPU, Precision::kBf16);
    // The cached copy of the first use would have no graph for the second.
    auto h = recompute(layer, torch::ones({2, 4}));
    layer(h).to(torch::kFloat).sum().backward();
  }
  const auto recomputed = layer->weight.grad().clone();
  layer->zero_grad();
  {
    const AutocastGuard guard(at::kCPU, Precision::kBf16);
    layer(layer(torch::ones({2, 4}))).to(torch::kFloat).sum().backward();
  }
  // Two uses are added in bf16 there and in float here.
  EXPECT_LT(
      (recomputed - layer->weight.grad()).abs().max().item<double>(),
      0.02 * recomputed.abs().max().item<double>());
}

TEST(Checkpoint, IsAPlainCallIfNoGraphIsRecorded) {
  torch::NoGradGuard no_grad;
  int num_calls = 0;
  const auto y = recompute(
      [&](const Tensor& x) {
        ++num_calls;
        return x * 2;
      },
      torch::ones({2}));
  EXPECT_EQ(num_calls, 1);
  EXPECT_FALSE(y.requires_grad());
}

TEST(Checkpoint, RejectsBackwardForSomeInputsOnly) {
  const auto x = torch::ones({2}, torch::requires_grad());
  const auto y = recompute([](const Tensor& t) { return t * 2; }, x);
  EXPECT_THAT(
      [&] { torch::autograd::grad({y.sum()}, {x}); },
      ThrowsMessage<UsageError>(HasSubstr("[recompute]")));
}

/// Counts the bytes of CPU tensors of this thread.
class MemoryMeter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(
      void* /*ptr*/,
      int64_t size,
      size_t /*allocated*/,
      size_t /*reserved*/,
      c10::Device /*device*/) override {
    held += size;
    peak = std::max(peak, held);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t held = 0;
  int64_t peak = 0;
};

constexpr int64_t kNumLayers = 36;
constexpr int64_t kBytes = 4 * 100'000;

/// Activations held after forward, and at most during backward, of a chain of
/// tanh (each keeps its output) in segments of `layers` each.
std::pair<double, double> activations(int64_t layers) {
  auto meter = std::make_shared<MemoryMeter>();
  const auto x = torch::zeros({kBytes / 4}, torch::requires_grad());
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  const auto segment = [layers](Tensor h) {
    for (int64_t i = 0; i < layers; ++i) {
      h = torch::tanh(h);
    }
    return h;
  };
  Tensor h = x;
  for (int64_t i = 0; i < kNumLayers / layers; ++i) {
    h = layers == 1 ? segment(h) : recompute(segment, h);
  }
  const double held = static_cast<double>(meter->held) / kBytes;
  auto loss = h.sum();
  h = Tensor();
  loss.backward();
  return {held, static_cast<double>(meter->peak) / kBytes};
}

TEST(Checkpoint, HoldsAsManyActivationsAsComputed) {
  // Besides activations: scalars, and 5 kB of random state per segment.
  constexpr double kSmall = 0.2;
  // Plain: all 36, and one gradient.
  const auto [plain, plain_peak] = activations(1);
  EXPECT_NEAR(plain, 36, kSmall);
  EXPECT_NEAR(plain_peak, 36 + 1, kSmall);
  // In s segments: s outputs; in backward also the activations of one segment,
  // and the gradient: least for s = sqrt(36).
  for (const int64_t layers : {3, 6, 12}) {
    const auto s = static_cast<double>(kNumLayers / layers);
    const auto [held, peak] = activations(layers);
    EXPECT_NEAR(held, s, kSmall) << layers;
    EXPECT_NEAR(peak, s + static_cast<double>(layers) + 1, kSmall) << layers;
  }
}

} // namespace
} // namespace accelerate::testing
