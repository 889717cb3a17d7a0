// SPDX-License-Identifier: Apache-2.0
// A fused AdamW with parameter groups and a schedule. Its state is saved by
// name.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  torch::nn::Sequential model(
      torch::nn::Linear(8, 32),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})),
      torch::nn::Linear(32, 1));

  // Only matrices have weight decay, not biases and norms.
  accelerate::optim::AdamW optimizer(
      accelerate::optim::no_decay_groups(*model),
      {.lr = 1e-2, .weight_decay = 0.01});
  auto [net, opt] = accelerator.prepare(model, optimizer);
  auto scheduler = accelerate::get_scheduler(
      "cosine", opt, {.num_warmup_steps = 10, .num_training_steps = 200});

  const auto inputs = torch::randn({64, 8}, accelerator.device());
  const auto targets = inputs.sum(1, /*keepdim=*/true).sin();
  for (int step = 0; step < 200; ++step) {
    auto loss = torch::mse_loss(net(inputs), targets);
    accelerator.backward(loss);
    opt.step();
    scheduler.step();
    opt.zero_grad();
    if (step % 50 == 49) {
      accelerator.print(
          "step ",
          step + 1,
          ", loss ",
          loss.item<float>(),
          ", rate ",
          scheduler.last_lr()[0]);
    }
  }

  // A checkpoint contains this state. Loading restores it in a new optimizer.
  const auto names = accelerate::named_parameters(*model);
  const auto state = accelerate::optimizer_state(optimizer, names);
  accelerate::load_optimizer_state(optimizer, names, state);
  accelerator.print(
      state.size(),
      " entries, such as state.0.weight.exp_avg of ",
      state.get<at::Tensor>("state.0.weight.exp_avg").numel(),
      " numbers");
}
