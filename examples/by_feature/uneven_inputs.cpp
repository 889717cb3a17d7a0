// SPDX-License-Identifier: Apache-2.0
// Ranks have different numbers of batches. No rank waits forever, and no sample
// is used twice.
//
//     accelerate launch --num_processes 2 example_uneven_inputs
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(0);
  const auto inputs = torch::randn({200, 8});
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({inputs, inputs.sum(1, true)}),
      {.batch_size = 8, .even_batches = false});
  torch::nn::Linear model(8, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  auto [loader, net, opt] = accelerator.prepare(dataloader, model, optimizer);

  torch::Tensor loss;
  for (int epoch = 0; epoch < 10; ++epoch) {
    const auto join = accelerator.join_uneven_inputs(net);
    for (auto& batch : loader) {
      loss = torch::mse_loss(net(batch[0]), batch[1]);
      accelerator.backward(loss);
      opt.step();
      opt.zero_grad();
    }
  }
  std::cout << "rank " + std::to_string(accelerator.process_index()) + " had " +
                   std::to_string(loader.size()) + " batches per epoch\n";
  accelerator.print("loss ", loss.item<double>());
}
