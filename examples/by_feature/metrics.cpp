// SPDX-License-Identifier: Apache-2.0
// A metric over several processes. It equals the metric of a single process,
// although the last batches are completed with samples from the beginning.
//
//     accelerate launch --num_processes 3 ./example_metrics
#include <accelerate/accelerate.h>
#include <torch/torch.h>

int main() {
  accelerate::Accelerator accelerator;

  // 100 numbers. The "model" considers those above 60 large, so it is wrong for
  // 51 to 60.
  const auto x = torch::arange(100);
  const auto is_large = x.gt(50);
  auto loader = accelerator.prepare(accelerate::DataLoader(
      accelerate::TensorDataset({x, is_large}), {.batch_size = 8}));

  accelerate::Accuracy accuracy(accelerator);
  std::vector<std::string> mistakes;
  for (auto& batch : loader) {
    const auto guess = batch[0].gt(60);
    accuracy.update(guess, batch[1]);

    // For other values, even objects, gather one per sample of the batch.
    std::vector<std::string> names;
    for (int64_t i = 0; i < guess.size(0); ++i) {
      const bool is_right = guess[i].equal(batch[1][i]);
      names.push_back(
          is_right ? "" : std::to_string(batch[0][i].item<int64_t>()));
    }
    for (const auto& name : accelerator.gather_for_metrics(names)) {
      if (!name.empty()) {
        mistakes.push_back(name);
      }
    }
  }
  accelerator.print(
      "accuracy ",
      accuracy.compute(),
      "; wrong from ",
      mistakes.front(),
      " to ",
      mistakes.back());
}
