// SPDX-License-Identifier: Apache-2.0
// Our side of sharding.py: milliseconds per training step in a stage, 0 for
// DDP. The same network as in sharding_peer.py, 32 tokens in each sample.
// Usage: sharding STAGE SAMPLES [gpu]
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kWarmUp = 3;
constexpr int kSteps = 10;
constexpr int64_t kWidth = 256;
constexpr int64_t kLayers = 4;

} // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const int stage = argc > 1 ? std::atoi(argv[1]) : 0;
  const int64_t num_samples = argc > 2 ? std::atoi(argv[2]) : 4;
  accelerate::Accelerator accelerator(
      {.cpu = argc < 4,
       .shard = {.stage = static_cast<accelerate::ShardStage>(stage)}});
  torch::nn::TransformerEncoder model(torch::nn::TransformerEncoderOptions(
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(kWidth, 8)
              .dim_feedforward(4 * kWidth)
              .dropout(0.0)),
      kLayers));
  accelerate::optim::AdamW adamw(model->parameters(), {.lr = 1e-4});
  auto [net, optimizer] = accelerator.prepare(model, adamw);
  // Time, batch, channels.
  const auto input =
      torch::randn({32, num_samples, kWidth}, accelerator.device());
  std::vector<double> times;
  for (int step = -kWarmUp; step < kSteps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const auto loss = net(input).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    loss.item(); // The device is through.
    const auto end = std::chrono::steady_clock::now();
    if (step >= 0) {
      times.push_back(
          std::chrono::duration<double, std::milli>(end - start).count());
    }
  }
  std::sort(times.begin(), times.end());
  accelerator.print(times[times.size() / 2]);
}
