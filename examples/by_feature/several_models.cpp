// SPDX-License-Identifier: Apache-2.0
// Trains two models with two optimizers in alternation. A generator learns to
// imitate a bell curve, and a critic learns to tell the difference.
//
//     accelerate launch --num_processes 2 example_several_models
#include <accelerate/accelerate.h>
#include <torch/torch.h>

int main() {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(
      1, {.offset = static_cast<uint64_t>(accelerator.process_index())});
  torch::nn::Sequential generator(
      torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  torch::nn::Sequential critic(
      torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  torch::optim::Adam generator_adam(generator->parameters(), 5e-3);
  torch::optim::Adam critic_adam(critic->parameters(), 5e-3);

  auto [g, d, g_opt, d_opt] =
      accelerator.prepare(generator, critic, generator_adam, critic_adam);
  const auto ones = torch::ones({64, 1}, accelerator.device());
  const auto wanted = [&] { return 3 + 0.5 * torch::randn_like(ones); };
  const auto noise = [&] { return torch::randn({64, 4}, ones.options()); };
  const auto verdict = [](const torch::Tensor& score, const torch::Tensor& is) {
    return torch::binary_cross_entropy_with_logits(score, is);
  };
  for (int step = 0; step < 1000; ++step) {
    // One forward pass for both halves, because each forward pass of a prepared
    // model communicates.
    const auto mixed = torch::cat({wanted(), g(noise()).detach()});
    accelerator.backward(verdict(d(mixed), torch::cat({ones, 0 * ones})));
    d_opt.step();
    d_opt.zero_grad();

    accelerator.backward(verdict(d(g(noise())), ones));
    g_opt.step();
    g_opt.zero_grad();
    d_opt.zero_grad();
  }
  const torch::NoGradGuard no_grad;
  const auto samples = accelerator.gather(g(noise()));
  accelerator.print(
      "mean of the generator: ", samples.mean().item<double>(), ", expected 3");
}
