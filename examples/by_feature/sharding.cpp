// SPDX-License-Identifier: Apache-2.0
// Every rank keeps a shard of parameters, gradients and optimizer state.
// Parameters are gathered when an operator reads them. The training loop is the
// same as without sharding.
//
//     accelerate launch --num_processes 2 example_sharding [FOLDER]
#include <accelerate/accelerate.h>
#include <torch/torch.h>

int main(int argc, char** argv) {
  // Allows units of any size, because this model is small.
  accelerate::Accelerator accelerator(
      {.shard = {
           .stage = accelerate::ShardStage::kParameters,
           .min_unit_numbers = 0}});
  accelerate::set_seed(0);
  const auto inputs = torch::randn({512, 8});
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({inputs, inputs.sum(1, true)}),
      {.batch_size = 16, .shuffle = true});
  torch::nn::Sequential model(
      torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  accelerate::optim::AdamW optimizer(model->parameters(), {.lr = 0.01});
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
  // Saves whole weights. All ranks must call it.
  if (argc > 1) {
    accelerator.save_model(net, argv[1]);
  }
}
