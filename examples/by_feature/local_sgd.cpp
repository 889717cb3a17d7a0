// SPDX-License-Identifier: Apache-2.0
// Ranks train independently and average their weights every 8 steps.
//
//     accelerate launch --num_processes 2 example_local_sgd
#include <accelerate/accelerate.h>
#include <torch/torch.h>

int main() {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(0);
  const auto inputs = torch::randn({512, 8});
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({inputs, inputs.sum(1, true)}),
      {.batch_size = 16, .shuffle = true});
  torch::nn::Linear model(8, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);

  torch::Tensor loss;
  for (int epoch = 0; epoch < 10; ++epoch) {
    accelerate::LocalSGD local_sgd(accelerator, net, 8);
    for (auto& batch : loader) {
      loss = torch::mse_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
      local_sgd.step();
    }
  }
  accelerator.print("loss ", loss.item<double>());
}
