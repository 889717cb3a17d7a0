// SPDX-License-Identifier: Apache-2.0
// Four micro-batches per update, in bf16, with clipping. Sequences have
// different lengths. The loss is a mean over tokens and is weighted by their
// number, so the update equals that of one large batch.
//
//     accelerate launch --num_processes 2 example_gradient_accumulation
#include <accelerate/accelerate.h>
#include <torch/torch.h>

int main() {
  accelerate::Accelerator accelerator(
      {.mixed_precision = accelerate::Precision::kBf16,
       .accumulation = {.num_steps = 4}});
  torch::manual_seed(1);
  const auto lengths = torch::randint(2, 9, {256, 1});
  const auto features = torch::randn({256, 8, 16});
  accelerate::DataLoader dataloader(
      accelerate::TensorDataset({features, lengths}),
      {.batch_size = 4, .shuffle = true, .seed = 1});
  torch::nn::Linear model(16, 16);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);

  auto [net, opt, loader] = accelerator.prepare(model, optimizer, dataloader);
  for (int epoch = 0; epoch < 5; ++epoch) {
    double last_loss = 0;
    int updates = 0;
    for (auto& batch : loader) {
      const auto window = accelerator.accumulate(net);
      const auto position = torch::arange(8, batch[1].options());
      const auto mask = position.unsqueeze(0) < batch[1];
      const auto tokens = mask.sum();
      const auto error = (net(batch[0]) - batch[0].roll(1, 2)).square().mean(2);
      const auto loss = (error * mask).sum() / tokens;
      accelerator.backward(loss, {.weight = tokens});
      accelerator.clip_grad_norm_(model->parameters(), 1.0);
      opt.step();
      opt.zero_grad();
      updates += opt.did_step() ? 1 : 0;
      last_loss = loss.item<double>();
    }
    accelerator.print(
        "epoch ", epoch, ": loss ", last_loss, " after ", updates, " updates");
  }
}
