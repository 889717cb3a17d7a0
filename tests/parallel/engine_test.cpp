// SPDX-License-Identifier: Apache-2.0
// The callbacks of an engine, tested with a second strategy and with DDP.
// Results are compared with DDP, whose own tests compare it with PyTorch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "accelerate/accelerate.h"
#include "parallel/optimizer_sharder.h"
#include "support/state.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(5))),
        first(register_module("first", torch::nn::Linear(5, 7))),
        second(register_module("second", torch::nn::Linear(7, 1))) {}
  Tensor forward(const Tensor& x) {
    if (throws) {
      throw std::runtime_error("no forward today");
    }
    return second(torch::tanh(first(norm(x))));
  }
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear first;
  torch::nn::Linear second;
  bool throws = false;
};
TORCH_MODULE(Net);

struct Trained {
  std::vector<Tensor> weights;
  std::vector<double> norms;
};

Tensor batch_of(int rank, int step, int64_t size = 4) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * rank + step));
  return torch::randn({size, 5}, generator);
}

/// Six micro-batches, two per update, weighted and clipped.
Trained train(const ProcessGroup& group, OwnEngine engine) {
  torch::manual_seed(group.ranks_are_threads() ? 3 : 3 + group.rank());
  Net net;
  {
    const torch::NoGradGuard no_grad;
    double shift = 0;
    for (auto& p : net->parameters()) {
      p.copy_(
          torch::linspace(-1, 1, p.numel()).view_as(p).sin() + (shift += 0.1));
    }
  }
  AcceleratorOptions options;
  options.accumulation.num_steps = 2;
  options.engine = std::move(engine);
  options.process_group = group;
  Accelerator accelerator(options);
  optim::AdamW adamw(net->parameters(), {.lr = 0.05});
  // The optimizer first: prepare connects objects when it has all of them.
  auto [opt, model] = accelerator.prepare(adamw, net);
  Trained result;
  for (int step = 0; step < 6; ++step) {
    const auto window = accelerator.accumulate(model);
    // Ragged: weights differ between micro-batches and ranks.
    const int64_t size = 3 + (step + group.rank()) % 3;
    const auto loss = model(batch_of(group.rank(), step, size)).pow(2).mean();
    accelerator.backward(loss, {.weight = size});
    const auto norm = accelerator.clip_grad_norm_(net->parameters(), 0.5);
    if (accelerator.sync_gradients()) {
      result.norms.push_back(norm.item<double>());
    }
    opt.step();
    opt.zero_grad(/*set_to_none=*/step % 4 == 1);
  }
  for (const auto& p : net->parameters()) {
    result.weights.push_back(p.detach().clone());
  }
  return result;
}

// Division by a power of two commutes with rounding, so dividing before or
// after a sum of two gives the same bits. The norm is summed in another order
// over slices: 1e-6 relative, and its effect on clipping.
TEST(OwnEngine, ShardedMomentsTrainAsDdp) {
  for (const int n : {1, 2, 3}) {
    run_ranks(n, [](ProcessGroup group) {
      const auto ddp = train(group, {});
      const auto own = train(group, optimizer_sharder());
      ASSERT_EQ(own.norms.size(), 3u);
      for (size_t i = 0; i < own.norms.size(); ++i) {
        EXPECT_NEAR(own.norms[i], ddp.norms[i], 1e-6 * ddp.norms[i]);
      }
      for (size_t i = 0; i < own.weights.size(); ++i) {
        EXPECT_TRUE(torch::allclose(
            own.weights[i], ddp.weights[i], /*rtol=*/1e-5, /*atol=*/1e-6))
            << i << own.weights[i] - ddp.weights[i];
      }
    });
  }
}

TEST(OwnEngine, EveryCallbackIsCalledInEveryStep) {
  run_ranks(2, [](ProcessGroup group) {
    OptimizerSharder* engine = nullptr;
    Accelerator accelerator(
        {.engine = optimizer_sharder(&engine), .process_group = group});
    Net net;
    optim::SGD sgd(net->parameters(), {.lr = 0.1});
    auto [model, opt] = accelerator.prepare(net, sgd);
    accelerator.backward(model(batch_of(group.rank(), 0)).sum());
    opt.step();
    opt.zero_grad();
    for (const char* seam :
         {"before_forward",
          "after_forward",
          "outputs",
          "before_backward",
          "after_backward",
          "before_step",
          "after_step",
          "zero_gradients"}) {
      EXPECT_EQ(engine->calls[seam], 1) << seam;
    }

    // If code in between throws, the pass is abandoned, and the next step is
    // complete.
    net->throws = true;
    EXPECT_THROW(model(batch_of(0, 1)), std::runtime_error);
    EXPECT_EQ(engine->calls["abandon_forward"], 1);
    net->throws = false;
    auto loss = model(batch_of(group.rank(), 1)).sum();
    loss.register_hook([](const Tensor&) -> Tensor {
      throw std::runtime_error("no backward today");
    });
    EXPECT_THROW(accelerator.backward(loss), std::runtime_error);
    EXPECT_EQ(engine->calls["abandon_backward"], 1);
    EXPECT_EQ(engine->calls["after_backward"], 1);
    opt.zero_grad();
    // Nothing has a gradient: the step throws.
    EXPECT_THROW(opt.step(), UsageError);
    EXPECT_EQ(engine->calls["abandon_step"], 1);
    accelerator.backward(model(batch_of(group.rank(), 2)).sum());
    opt.step();
    EXPECT_EQ(engine->calls["after_step"], 2);
    EXPECT_EQ(engine->calls["abandon_step"], 1);
  });
}

TEST(OwnEngine, TrainsIfTheModelIsPreparedAfterTheOptimizer) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.engine = optimizer_sharder(), .process_group = group});
    Net net;
    optim::SGD sgd(net->parameters(), {.lr = 0.1});
    auto opt = accelerator.prepare(sgd);
    auto model = accelerator.prepare(net);
    const auto before = net->first->weight.detach().clone();
    accelerator.backward(model(batch_of(group.rank(), 0)).sum());
    opt.step();
    EXPECT_FALSE(torch::equal(net->first->weight, before));
    for (const auto& rows :
         group.all_gather(net->first->weight.detach()).unbind()) {
      EXPECT_TRUE(torch::equal(rows, net->first->weight));
    }
  });
}

TEST(OwnEngine, RefusesAnOptimizerThatHasStateForTheWholeTensor) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.engine = optimizer_sharder(), .process_group = group});
    Net net;
    optim::AdamW adamw(net->parameters(), {});
    net(batch_of(0, 0)).sum().backward();
    adamw.step();
    EXPECT_THAT(
        [&] { accelerator.prepare(net, adamw); },
        ThrowsMessage<UsageError>(
            HasSubstr("already has state for 'norm.weight'")));
  });
}

TEST(OwnEngine, CannotBeJoinedAndSaysSo) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.engine = optimizer_sharder(), .process_group = group});
    Net net;
    auto model = accelerator.prepare(net);
    EXPECT_THAT(
        [&] { const auto join = accelerator.join_uneven_inputs(model); },
        ThrowsMessage<UsageError>(
            HasSubstr("[join_uneven_inputs] The strategy of model 0")));
  });
}

TEST(OwnEngine, MomentsAreSavedAsSlicesOfTheWhole) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator(
        {.engine = optimizer_sharder(), .process_group = group});
    Net net;
    optim::AdamW adamw(net->parameters(), {.lr = 0.05});
    auto [model, opt] = accelerator.prepare(net, adamw);
    const auto step = [&, &model = model, &opt = opt](int seed) {
      accelerator.backward(model(batch_of(group.rank(), seed)).pow(2).sum());
      opt.step();
      opt.zero_grad();
    };
    step(0);
    auto copy = testing::copy_of(accelerator.state().state_dict());
    const auto& slice =
        copy.get<TensorSlice>("optimizer.state.first.weight.exp_avg");
    EXPECT_THAT(slice.whole, ElementsAre(7, 5));
    const int64_t count = group.rank() == 0 ? 18 : 17;
    EXPECT_EQ(slice.pieces, flat_range({7, 5}, group.rank() * 18, count));
    EXPECT_EQ(slice.values.numel(), count);
    EXPECT_EQ(copy.get<int64_t>("engine.num_steps"), 1);

    // Continue, go back, continue: the same bits.
    step(1);
    const auto first = net->first->weight.detach().clone();
    accelerator.state().load_state_dict(copy);
    step(1);
    EXPECT_TRUE(torch::equal(net->first->weight, first));

    copy.set(
        "optimizer.state.first.weight.exp_avg",
        TensorSlice{torch::zeros({3}), {7, 5}, flat_range({7, 5}, 1, 3)});
    EXPECT_THAT(
        [&] { accelerator.state().load_state_dict(copy); },
        ThrowsMessage<UsageError>(
            HasSubstr("has 3 elements of a tensor of shape [7, 5]")));
  });
}

TEST(OwnEngine, MomentsAreReshardedForAnotherNumberOfRanks) {
  const testing::TempDir folder;
  const std::string key = "optimizer.state.first.weight.exp_avg";
  std::array<torch::Tensor, 2> saved;
  const auto with = [&](int num_ranks, const auto& work) {
    run_ranks(num_ranks, [&](ProcessGroup group) {
      Accelerator accelerator(
          {.engine = optimizer_sharder(), .process_group = group});
      Net net;
      optim::AdamW adamw(net->parameters(), {.lr = 0.05});
      auto [model, opt] = accelerator.prepare(net, adamw);
      accelerator.backward(model(batch_of(group.rank(), 0)).pow(2).sum());
      opt.step();
      opt.zero_grad();
      work(group, accelerator);
    });
  };
  with(2, [&](const ProcessGroup& group, Accelerator& accelerator) {
    accelerator.save_state(folder.path() / "state");
    saved[static_cast<size_t>(group.rank())] =
        accelerator.state().state_dict().get<TensorSlice>(key).values.clone();
  });
  const auto whole = torch::cat({saved[0], saved[1]});
  for (const int num_ranks : {1, 3}) {
    with(num_ranks, [&](const ProcessGroup&, Accelerator& accelerator) {
      accelerator.load_state(folder.path() / "state");
      const auto state = accelerator.state().state_dict();
      const auto& slice = state.get<TensorSlice>(key);
      EXPECT_TRUE(torch::equal(
          slice.values.flatten(),
          whole.narrow(0, slice.pieces.front().begin, slice.values.numel())));
    });
  }
}

/// Counts, and allocates from the heap.
struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* memory = std::malloc(std::max<size_t>(size, 1));
    blocks.emplace_back(static_cast<char*>(memory), size);
    return {memory, memory, &std::free, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
  bool owns(const void* address) const {
    for (const auto& [begin, size] : blocks) {
      if (address >= begin && address < begin + size) {
        return true;
      }
    }
    return false;
  }
  std::vector<std::pair<char*, size_t>> blocks;
};

TEST(MemoryLayout, DdpStoresGradientsInTheGivenMemory) {
  run_ranks(2, [](ProcessGroup group) {
    CountingAllocator allocator;
    Net net;
    {
      Accelerator accelerator(
          {.memory = {.gradients = &allocator}, .process_group = group});
      optim::SGD sgd(net->parameters(), {.lr = 0.1});
      auto [model, opt] = accelerator.prepare(net, sgd);
      // Buckets are laid out again after the first step.
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(batch_of(group.rank(), step)).sum());
        for (const auto& p : net->parameters()) {
          EXPECT_TRUE(allocator.owns(p.grad().data_ptr())) << step;
          const auto all = group.all_gather(p.grad());
          EXPECT_TRUE(torch::equal(all[0], all[1]));
        }
        opt.step();
        opt.zero_grad();
      }
      EXPECT_EQ(model.engine().layout().units().size(), 1u);
      EXPECT_EQ(model.engine().layout().units()[0].parameters.size(), 6u);
      net->zero_grad();
    }
  });
}

TEST(MemoryLayout, RejectsUnitsOfTwoDtypes) {
  MemoryLayout layout;
  EXPECT_THAT(
      [&] {
        layout.set_units(
            {torch::zeros(2), torch::zeros(2, torch::kDouble)}, {{0, 1}});
      },
      ThrowsMessage<UsageError>(
          HasSubstr("Use one dtype and device per unit")));
}

} // namespace
} // namespace accelerate
