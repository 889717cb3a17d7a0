// SPDX-License-Identifier: Apache-2.0
// A small training in which everything has state.
#pragma once

#include <torch/torch.h>

#include <filesystem>

#include "accelerate/accelerate.h"
#include "support/state.h"

namespace accelerate::testing {

using torch::Tensor;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double dropout)
      : first(register_module("first", torch::nn::Linear(3, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        second(register_module("second", torch::nn::Linear(8, 1))) {}
  Tensor forward(const Tensor& x) {
    return second(drop(torch::relu(norm(first(x)))));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear second;
};
TORCH_MODULE(Net);

struct Counter final : Stateful {
  StateDict state_dict() const override {
    StateDict state;
    state.set("seen", seen);
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    seen = state.get<int64_t>("seen");
  }
  int64_t seen = 0;
};

inline auto data() {
  auto generator = at::detail::createCPUGenerator(5);
  const auto x = torch::randn({44, 3}, generator);
  return TensorDataset({x, x.sum(1, true)});
}

/// All objects of a run.
struct Training {
  /// Ranks that are threads share a generator, and have no dropout.
  Training(ProcessGroup group, bool weighted)
      : Training(
            {.cpu = true, .process_group = group},
            weighted,
            group.world_size() == 1 ? 0.3 : 0.0) {}
  Training(AcceleratorOptions options, bool weighted, double dropout)
      : accelerator(with_windows(std::move(options))),
        model(dropout),
        adamw(model->parameters(), {.lr = 0.05}),
        net(accelerator.prepare(model)),
        opt(accelerator.prepare(adamw)),
        scheduler(accelerator.prepare(
            Scheduler(adamw, StepLR{.step_size = 2, .gamma = 0.5}))),
        loader(accelerator.prepare(
            DataLoader(data(), {.batch_size = 2, .shuffle = true, .seed = 9}))),
        counter(std::make_shared<Counter>()),
        weighted(weighted) {
    accelerator.state().add("counter", counter);
  }

  static AcceleratorOptions with_windows(AcceleratorOptions options) {
    options.accumulation.num_steps = 3;
    return options;
  }

  /// Micro-batches up to number `end` of all epochs; state after `save_at`.
  void run(int64_t end, int64_t save_at = -1) {
    while (counter->seen < end) {
      for (auto& batch : loader) {
        const auto window = accelerator.accumulate(net);
        auto loss = torch::mse_loss(net(batch[0]), batch[1]);
        BackwardOptions options;
        if (weighted) {
          options.weight = 1 + counter->seen % 4;
        }
        accelerator.backward(loss, options);
        opt.step();
        scheduler.step();
        opt.zero_grad();
        losses.push_back(loss.item<double>());
        if (++counter->seen == save_at) {
          saved = copy_of(accelerator.state().state_dict());
        }
        if (after_micro_batch) {
          after_micro_batch();
        }
        if (counter->seen == end) {
          break;
        }
      }
    }
  }

  /// As above; saves in the loop, after the last micro-batch.
  void run_and_save(
      int64_t end,
      const std::filesystem::path& folder,
      const SaveStateOptions& options = {}) {
    after_micro_batch = [this, end, folder, options] {
      if (counter->seen == end) {
        accelerator.save_state(folder, options);
      }
    };
    run(end);
    after_micro_batch = nullptr;
  }

  Accelerator accelerator;
  Net model;
  optim::AdamW adamw;
  PreparedModel<NetImpl> net;
  PreparedOptimizer opt;
  Scheduler scheduler;
  decltype(std::declval<Accelerator&>().prepare(
      std::declval<DataLoader<TensorDataset>&>())) loader;
  std::shared_ptr<Counter> counter;
  bool weighted;
  std::function<void()> after_micro_batch;
  std::vector<double> losses;
  StateDict saved;
};

} // namespace accelerate::testing
