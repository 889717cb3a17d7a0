// SPDX-License-Identifier: Apache-2.0
// Learns to tell two spirals apart.
#include <accelerate/accelerator.h>
#include <accelerate/data_loader.h>
#include <accelerate/observe/progress_bar.h>
#include <torch/torch.h>

#include "spirals.h"

int main(int argc, char** argv) {
  torch::manual_seed(0);
  accelerate::DataLoader train_dataloader(
      spirals::SpiralDataset(), {.batch_size = 16, .shuffle = true});

  accelerate::Accelerator accelerator;

  spirals::Classifier model;
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);

  auto [train_loader, net, opt] =
      accelerator.prepare(train_dataloader, model, optimizer);

  const int num_epochs = 30;
  const int64_t num_training_steps = num_epochs * train_loader.size();
  torch::optim::StepLR lr_scheduler(opt, 300, 0.3);
  accelerate::ProgressBar progress_bar(num_training_steps);

  net->train();
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    torch::Tensor loss;
    for (auto& batch : train_loader) {
      auto outputs = net(batch);
      loss = outputs.loss;
      accelerator.backward(loss);

      opt.step();
      lr_scheduler.step();
      opt.zero_grad();
      progress_bar.update(1);
    }
    if (epoch % 5 == 4) {
      spirals::report(epoch + 1, loss);
    }
  }
  spirals::save(net->parameters(), argc, argv);
}
