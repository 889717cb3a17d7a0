// SPDX-License-Identifier: Apache-2.0
// Our side of model_step.py: milliseconds of one training step of a classifier,
// and where they go.
//
//     model_step FOLDER BATCH TOKENS STEPS
#include <accelerate/models.h>
#include <accelerate/optimizers.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kWarmUp = 2;

double now_ms() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(time).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: model_step FOLDER BATCH TOKENS STEPS\n", stderr);
    return 2;
  }
  const int64_t batch = std::atoll(argv[2]);
  const int64_t tokens = std::atoll(argv[3]);
  const int steps = std::atoi(argv[4]);
  const auto model =
      accelerate::models::AutoModelForSequenceClassification::from_pretrained(
          argv[1], {.num_labels = 2, .warn = false});
  model->train();
  accelerate::optim::AdamW optimizer(model->parameters(), {.lr = 3e-5});
  accelerate::models::ModelInputs inputs{
      .input_ids = torch::randint(1000, 30000, {batch, tokens}, torch::kLong),
      .attention_mask = torch::ones({batch, tokens}, torch::kLong),
      .labels = torch::randint(0, 2, {batch}, torch::kLong)};
  // A quarter of the batch is half as long: a padded batch, as in training.
  inputs.attention_mask.slice(0, 0, batch / 4).slice(1, tokens / 2).zero_();
  std::vector<double> whole, forward, backward, update;
  for (int step = -kWarmUp; step < steps; ++step) {
    const double start = now_ms();
    const auto outputs = model->forward(inputs);
    const double after_forward = now_ms();
    outputs.loss.backward();
    const double after_backward = now_ms();
    optimizer.step();
    optimizer.zero_grad();
    const double end = now_ms();
    if (step >= 0) {
      whole.push_back(end - start);
      forward.push_back(after_forward - start);
      backward.push_back(after_backward - after_forward);
      update.push_back(end - after_backward);
    }
  }
  std::printf(
      "%f %f %f %f\n",
      median(whole),
      median(forward),
      median(backward),
      median(update));
}
