// SPDX-License-Identifier: Apache-2.0
// Fits a line: the loop in 20 lines.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

int main() {
  const auto x = torch::linspace(-1, 1, 256).unsqueeze(1);
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({x, 3 * x + 1}),
      {.batch_size = 8, .shuffle = true});
  torch::nn::Linear model(1, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);

  accelerate::Accelerator accelerator;
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);
  for (int epoch = 0; epoch < 8; ++epoch) {
    for (auto& batch : loader) {
      auto loss = torch::mse_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
    }
  }
  accelerator.print(
      "y = ", net->weight.item<float>(), " x + ", net->bias.item<float>());
}
