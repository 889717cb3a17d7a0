// SPDX-License-Identifier: Apache-2.0
// What a prepared loop adds to a raw LibTorch loop, in the same process.
//
// Prints one JSON line per case: microseconds per step of both (medians of
// blocks that alternate), their ratio, and the median of what is added.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

namespace {

struct Case {
  const char* name;
  int64_t width;
  int64_t batch;
  int steps_per_block;
  int num_blocks;
};

double microseconds_per_step(int steps, const std::function<void()>& step) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) {
    step();
  }
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::micro>(end - start).count() / steps;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const Case& c) {
  const auto input = torch::randn({c.batch, c.width});
  const auto target = torch::randn({c.batch, c.width});
  torch::nn::Linear raw_model(c.width, c.width);
  torch::optim::SGD raw_optimizer(raw_model->parameters(), 1e-4);
  const auto raw_step = [&] {
    auto loss = torch::mse_loss(raw_model(input), target);
    loss.backward();
    raw_optimizer.step();
    raw_optimizer.zero_grad();
  };

  accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear model(c.width, c.width);
  torch::optim::SGD sgd(model->parameters(), 1e-4);
  auto [net, optimizer] = accelerator.prepare(model, sgd);
  const auto prepared_step = [&, &net = net, &optimizer = optimizer] {
    auto loss = torch::mse_loss(net(input), target);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  };

  std::vector<double> raw;
  std::vector<double> prepared;
  std::vector<double> added;
  for (int block = -1; block < c.num_blocks; ++block) {
    const double r = microseconds_per_step(c.steps_per_block, raw_step);
    const double p = microseconds_per_step(c.steps_per_block, prepared_step);
    if (block >= 0) { // The first block warms up.
      raw.push_back(r);
      prepared.push_back(p);
      added.push_back(p - r);
    }
  }
  std::printf(
      "{\"bench\": \"step_overhead\", \"case\": \"%s\", \"ours\": %.2f, "
      "\"peer\": %.2f, \"unit\": \"us/step\", \"ratio\": %.3f, \"added\": "
      "%.2f}\n",
      c.name,
      median(prepared),
      median(raw),
      median(raw) / median(prepared),
      median(added));
}

} // namespace

int main() {
  at::set_num_threads(1);
  measure({"tiny", 32, 8, 200, 101});
  measure({"1ms", 384, 64, 20, 101});
}
