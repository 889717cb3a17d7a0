// SPDX-License-Identifier: Apache-2.0
// A GAN that learns points on a circle, with two models and two optimizers. The
// samples at the end come from averaged weights of the generator.
//
//     accelerate launch --num_processes 2 gan
#include <accelerate/accelerate.h>
#include <torch/torch.h>

namespace {

constexpr int64_t kNoise = 4;

torch::nn::Sequential make_model(int64_t num_inputs, int64_t num_outputs) {
  return torch::nn::Sequential(
      torch::nn::Linear(num_inputs, 64),
      torch::nn::LeakyReLU(),
      torch::nn::Linear(64, 64),
      torch::nn::LeakyReLU(),
      torch::nn::Linear(64, num_outputs));
}

torch::Tensor loss_of(const torch::Tensor& scores, double wanted) {
  return torch::binary_cross_entropy_with_logits(
      scores, torch::full_like(scores, wanted));
}

} // namespace

int main() {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(1); // the same data and initial weights on all ranks
  const auto angles = 2 * M_PI * torch::rand({4096, 1});
  const auto circle = torch::cat({angles.cos(), angles.sin()}, 1);
  auto generator = make_model(kNoise, 2);
  auto critic = make_model(2, 1);
  const accelerate::optim::AdamOptions options{
      .lr = 1e-3, .betas = {0.5, 0.99}};
  accelerate::optim::Adam generator_steps(generator->parameters(), options);
  accelerate::optim::Adam critic_steps(critic->parameters(), options);
  auto [make, judge, make_opt, judge_opt, loader] = accelerator.prepare(
      generator,
      critic,
      generator_steps,
      critic_steps,
      accelerate::DataLoader(
          accelerate::TensorDataset({circle}),
          {.batch_size = 64, .shuffle = true, .drop_last = true}));
  accelerate::Ema ema(make, {.decay = 0.99});
  // Each rank has its own noise.
  const auto rank = static_cast<uint64_t>(accelerator.process_index());
  accelerate::set_seed(1, {.offset = 1 + rank});
  const auto noise = [&](int64_t num) {
    return torch::randn({num, kNoise}, accelerator.device());
  };

  for (int epoch = 0; epoch < 40; ++epoch) {
    for (auto& batch : loader) {
      const auto fake = make(noise(batch[0].size(0)));
      const auto scores = judge(torch::cat({batch[0], fake.detach()}));
      const auto halves = scores.chunk(2);
      accelerator.backward(loss_of(halves[0], 0.9) + loss_of(halves[1], 0));
      judge_opt.step();
      judge_opt.zero_grad();

      accelerator.backward(loss_of(judge(fake), 1));
      make_opt.step();
      make_opt.zero_grad();
      judge_opt.zero_grad(); // drop the gradients of the generator's loss
      ema.update();
    }
  }
  const torch::NoGradGuard no_grad;
  const auto averaged = ema.evaluate();
  accelerate::Mean radius(accelerator);
  radius.update(make(noise(500)).norm(2, 1));
  accelerator.print_once("radius ", radius.compute());
}
