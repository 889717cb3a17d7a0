// SPDX-License-Identifier: Apache-2.0
// A model of equal blocks.
#pragma once

#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"
#include "parallel/host_bytes.h"

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

/// With a table that its constructor computes, a counter, and a tied weight.
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

} // namespace accelerate::testing
