// SPDX-License-Identifier: Apache-2.0
// Learns to tell two spirals apart.
#include <accelerate/data_loader.h>
#include <accelerate/observe/progress_bar.h>
#include <torch/torch.h>

#include "spirals.h"

int main(int argc, char** argv) {
  torch::manual_seed(0);
  accelerate::DataLoader train_dataloader(
      spirals::SpiralDataset(), {.batch_size = 16, .shuffle = true});

  spirals::Classifier model;
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);

  torch::Device device(
      torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  model->to(device);

  const int num_epochs = 30;
  const int64_t num_training_steps = num_epochs * train_dataloader.size();
  torch::optim::StepLR lr_scheduler(optimizer, 300, 0.3);
  accelerate::ProgressBar progress_bar(num_training_steps);

  model->train();
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    torch::Tensor loss;
    for (auto& batch : train_dataloader) {
      batch = spirals::to(batch, device);
      auto outputs = model(batch);
      loss = outputs.loss;
      loss.backward();

      optimizer.step();
      lr_scheduler.step();
      optimizer.zero_grad();
      progress_bar.update(1);
    }
    if (epoch % 5 == 4) {
      spirals::report(epoch + 1, loss);
    }
  }
  spirals::save(model->parameters(), argc, argv);
}
