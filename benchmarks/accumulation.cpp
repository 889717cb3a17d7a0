// SPDX-License-Identifier: Apache-2.0
// Our side of accumulation.py: milliseconds of a micro-batch that sends
// nothing, and of the same forward and backward without this library, in blocks
// that alternate in each of the processes.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <vector>

namespace {

constexpr int kStepsPerBlock = 10;
constexpr int kBlocks = 15;

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(
      torch::nn::Linear(512, 1024),
      torch::nn::ReLU(),
      torch::nn::Linear(1024, 512));
}

double milliseconds_per_step(const std::function<void()>& step) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kStepsPerBlock; ++i) {
    step();
  }
  const std::chrono::duration<double, std::milli> time =
      std::chrono::steady_clock::now() - start;
  return time.count() / kStepsPerBlock;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

} // namespace

int main() {
  at::set_num_threads(1);
  accelerate::Accelerator accelerator(
      {.cpu = true,
       .accumulation = {.num_steps = std::numeric_limits<int64_t>::max()}});
  auto model = make_model();
  auto raw_model = make_model();
  torch::optim::SGD sgd(model->parameters(), 1e-3);
  auto [net, optimizer] = accelerator.prepare(model, sgd);
  const auto input = torch::randn({32, 512});
  std::vector<double> ours;
  std::vector<double> raw;
  for (int block = -1; block < kBlocks; ++block) {
    accelerator.wait_for_everyone();
    const double r = milliseconds_per_step(
        [&] { raw_model->forward(input).square().mean().backward(); });
    accelerator.wait_for_everyone();
    const double o = milliseconds_per_step([&, &net = net, &opt = optimizer] {
      const auto window = accelerator.accumulate(net);
      accelerator.backward(net(input).square().mean());
      opt.step();
      opt.zero_grad();
    });
    if (block >= 0) { // The first block warms up.
      raw.push_back(r);
      ours.push_back(o);
    }
  }
  accelerator.print(median(ours), ' ', median(raw));
}
