// SPDX-License-Identifier: Apache-2.0
// Our side of ddp_cpu.py: milliseconds per training step. The same networks as
// in ddp_cpu_peer.py.
//
// Shapes: B batch, T tokens, C channels, H heads, D channels of a head.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int kWarmUp = 5;
constexpr int kSteps = 25;
constexpr int64_t kChannels = 192;
constexpr int64_t kHeads = 6;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm1(torch::nn::LayerNormOptions({kChannels})),
        qkv(kChannels, 3 * kChannels),
        projection(kChannels, kChannels),
        norm2(torch::nn::LayerNormOptions({kChannels})),
        up(kChannels, 4 * kChannels),
        down(4 * kChannels, kChannels) {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("projection", projection);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x_BTC) {
    const auto B = x_BTC.size(0);
    const auto T = x_BTC.size(1);
    const auto parts = qkv(norm1(x_BTC))
                           .view({B, T, 3, kHeads, kChannels / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const auto y_BHTD =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    const auto y_BTC = y_BHTD.transpose(1, 2).reshape({B, T, kChannels});
    x_BTC = x_BTC + projection(y_BTC);
    return x_BTC + down(torch::gelu(up(norm2(x_BTC))));
  }
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, projection;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

torch::nn::Sequential make_model(const std::string& name) {
  if (name == "mlp") {
    return torch::nn::Sequential(
        torch::nn::Linear(1024, 2048),
        torch::nn::ReLU(),
        torch::nn::Linear(2048, 1024));
  }
  return torch::nn::Sequential(Block(), Block(), Block(), Block());
}

torch::Tensor make_input(const std::string& name) {
  return name == "mlp" ? torch::randn({8, 1024})
                       : torch::randn({4, 64, kChannels});
}

} // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string name = argc > 1 ? argv[1] : "mlp";
  accelerate::Accelerator accelerator({.cpu = true});
  auto model = make_model(name);
  torch::optim::SGD sgd(model->parameters(), 1e-3);
  auto [net, optimizer] = accelerator.prepare(model, sgd);
  const auto input = make_input(name);
  std::vector<double> times;
  for (int step = -kWarmUp; step < kSteps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    accelerator.backward(net(input).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    const auto end = std::chrono::steady_clock::now();
    if (step >= 0) {
      times.push_back(
          std::chrono::duration<double, std::milli>(end - start).count());
    }
  }
  std::sort(times.begin(), times.end());
  accelerator.print(times[times.size() / 2]);
}
