// SPDX-License-Identifier: Apache-2.0
// A model of equal blocks, and how many bytes each rank holds of it.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"

namespace accelerate::testing {

struct FloorImpl : torch::nn::Module {
  explicit FloorImpl(int64_t width)
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 2 * width))),
        down(register_module("down", torch::nn::Linear(2 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x + down(torch::gelu(up(norm(x))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Floor);

/// With a table that its constructor computes, a count, and a weight that is
/// used twice.
struct TowerImpl : torch::nn::Module {
  TowerImpl(int64_t width, int num_floors)
      : floors(register_module("floors", torch::nn::ModuleList())),
        words(register_module("words", torch::nn::Embedding(11, width))),
        head(register_parameter("head", words->weight)) {
    for (int i = 0; i < num_floors; ++i) {
      floors->push_back(Floor(width));
    }
    const auto rates =
        1.0 / torch::pow(10'000.0, torch::arange(0, width, 2) / double(width));
    const auto angles = torch::outer(torch::arange(16), rates);
    table =
        register_buffer("table", torch::cat({angles.cos(), angles.sin()}, 1));
    count = register_buffer("count", torch::zeros({1}, torch::kLong));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto h = words(tokens) + table.narrow(0, 0, tokens.size(0));
    for (const auto& floor : *floors) {
      h = floor->as<FloorImpl>()->forward(h);
    }
    return torch::matmul(h, head.t());
  }
  torch::nn::ModuleList floors;
  torch::nn::Embedding words;
  torch::Tensor head, table, count;
};
TORCH_MODULE(Tower);

inline torch::Tensor tower_loss(const torch::Tensor& logits, int step) {
  return torch::nn::functional::cross_entropy(
      logits, (torch::arange(logits.size(0)) + step) % 11);
}

inline torch::Tensor tower_tokens(int step) {
  return (torch::arange(5) * 3 + step) % 11;
}

inline AcceleratorOptions tower_options(
    const ProcessGroup& group,
    ShardStage stage) {
  AcceleratorOptions options{.process_group = group};
  options.cpu = true;
  options.shard = {.stage = stage, .min_unit_numbers = 1};
  return options;
}

/// While it lives, counts what each thread allocates on the host and has not
/// given back.
class HostBytes {
 public:
  struct Count {
    std::atomic<int64_t> now = 0;
    std::atomic<int64_t> peak = 0;
  };

  HostBytes() { c10::SetCPUAllocator(&allocator(), kPriority); }
  ~HostBytes() { c10::SetCPUAllocator(allocator().inner, kPriority); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;

  /// Of the calling thread, from now on.
  static const Count& restart() {
    auto& count = mine();
    count.peak = count.now.load();
    return count;
  }

 private:
  static constexpr uint8_t kPriority = 100;

  // Memory may outlive the thread, and the counting.
  static Count& mine() {
    thread_local auto* count = new Count;
    return *count;
  }

  struct Allocator final : c10::Allocator {
    struct Held {
      Count& count;
      c10::DataPtr memory;
      int64_t size;
    };
    c10::DataPtr allocate(size_t size) override {
      auto& count = mine();
      const auto num = static_cast<int64_t>(size);
      count.now += num;
      count.peak = std::max(count.peak.load(), count.now.load());
      auto memory = inner->allocate(size);
      void* data = memory.get();
      return {
          data,
          new Held{count, std::move(memory), num},
          [](void* held) {
            auto* own = static_cast<Held*>(held);
            own->count.now -= own->size;
            delete own;
          },
          c10::Device(c10::kCPU)};
    }
    void copy_data(void* to, const void* from, size_t size) const override {
      default_copy_data(to, from, size);
    }
    c10::Allocator* inner = c10::GetCPUAllocator();
  };
  static Allocator& allocator() {
    static auto* const allocator = new Allocator; // Tensors name it.
    return *allocator;
  }
};

} // namespace accelerate::testing
