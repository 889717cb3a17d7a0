// SPDX-License-Identifier: Apache-2.0
// Sends gradients as products of thin matrices (PowerSGD), then in 16 bits.
//
//     accelerate launch --num_processes 2 example_gradient_compression
#include <accelerate/accelerate.h>
#include <torch/torch.h>

double train(const accelerate::DdpOptions& ddp) {
  accelerate::Accelerator accelerator({.cpu = true, .ddp = ddp});
  accelerate::set_seed(0);
  const auto inputs = torch::randn({512, 16});
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({inputs, torch::sin(inputs)}),
      {.batch_size = 32, .shuffle = true, .seed = 1});
  torch::nn::Sequential model(
      torch::nn::Linear(16, 64), torch::nn::Tanh(), torch::nn::Linear(64, 16));
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);

  torch::Tensor loss;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& batch : loader) {
      loss = torch::mse_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
    }
  }
  accelerator.print("loss ", loss.item<double>());
  return loss.item<double>();
}

int main() {
  train({});
  train({.compression = accelerate::Compression::kBf16});
  // The first steps matter most, so they are sent uncompressed.
  train(
      {.compression = accelerate::Compression::kPowerSgd,
       .power_sgd = {
           .matrix_approximation_rank = 2, .start_powerSGD_iter = 20}});
}
