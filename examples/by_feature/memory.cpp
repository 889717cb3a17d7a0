// SPDX-License-Identifier: Apache-2.0
// Saves memory: recomputes activations instead of keeping them, and finds the
// largest batch that fits.
//
//     accelerate launch --num_processes 2 example_memory
#include <accelerate/accelerate.h>
#include <torch/torch.h>

struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i), torch::nn::Linear(32, 32)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks) {
      // Keeps the block's input but none of its activations.
      x = accelerate::recompute(
          [block](const torch::Tensor& h) mutable {
            return h + torch::dropout(torch::gelu(block(h)), 0.1, true);
          },
          x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> blocks;
};
TORCH_MODULE(Deep);

int64_t train(int64_t batch_size) {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(0);
  Deep model;
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  for (int step = 0; step < 20; ++step) {
    const auto x = torch::randn({batch_size, 32}, accelerator.device());
    auto loss = torch::mse_loss(net(x), x.roll(1, 1));
    accelerator.backward(loss);
    opt.step();
    opt.zero_grad();
  }
  // Simulates a machine with too little memory.
  if (batch_size > 50) {
    throw std::bad_alloc();
  }
  accelerator.print("trained with batches of ", batch_size);
  return batch_size;
}

int main() {
  accelerate::find_executable_batch_size(
      64, [](int64_t batch_size) { return train(batch_size); });
}
