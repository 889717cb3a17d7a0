// SPDX-License-Identifier: Apache-2.0
// Our side of model_step_gpu.py: milliseconds of one training step of a
// BERT-base-sized classifier in bf16 on a GPU.
//
//     model_step_gpu BATCH TOKENS STEPS
#include <accelerate/accelerate.h>
#include <accelerate/models.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 4 || !torch::cuda::is_available()) {
    std::fputs("usage: model_step_gpu BATCH TOKENS STEPS, on a GPU\n", stderr);
    return 2;
  }
  const int64_t batch = std::atoll(argv[1]);
  const int64_t tokens = std::atoll(argv[2]);
  const int steps = std::atoi(argv[3]);
  accelerate::Accelerator accelerator(
      {.mixed_precision = accelerate::Precision::kBf16});
  auto model =
      accelerate::models::AutoModelForSequenceClassification::from_config(
          accelerate::models::ModelConfig::parse(R"({"model_type": "bert"})"),
          {.num_labels = 2});
  accelerate::optim::AdamW adam(model->parameters(), {.lr = 3e-5});
  auto [net, optimizer] = accelerator.prepare(model, adam);
  const auto device = accelerator.device();
  accelerate::models::ModelInputs inputs{
      .input_ids =
          torch::randint(1000, 30000, {batch, tokens}, torch::kLong).to(device),
      .attention_mask = torch::ones({batch, tokens}, torch::kLong).to(device),
      .labels = torch::randint(0, 2, {batch}, torch::kLong).to(device)};
  // A quarter of the batch is half as long: a padded batch, as in training.
  inputs.attention_mask.slice(0, 0, batch / 4).slice(1, tokens / 2).zero_();
  const auto run = [&, &net = net, &optimizer = optimizer](int count) {
    for (int step = 0; step < count; ++step) {
      accelerator.backward(net(inputs).loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    torch::cuda::synchronize();
  };
  run(10);
  const auto start = std::chrono::steady_clock::now();
  run(steps);
  const std::chrono::duration<double, std::milli> time =
      std::chrono::steady_clock::now() - start;
  std::printf("%f\n", time.count() / steps);
}
