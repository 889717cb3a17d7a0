// SPDX-License-Identifier: Apache-2.0
// Stops in the middle of a shuffled epoch and resumes. The samples before and
// after the stop are those of the whole epoch, in the same order.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <set>

namespace {

auto make_loader() {
  return accelerate::DataLoader(
      accelerate::TensorDataset({torch::arange(100)}),
      {.batch_size = 8, .shuffle = true, .seed = 42, .num_workers = 2});
}

} // namespace

int main() {
  accelerate::Accelerator accelerator;
  std::multiset<int64_t> seen;
  const auto note = [&](const std::vector<torch::Tensor>& batch) {
    const auto all = accelerator.gather_for_metrics(batch[0]).cpu();
    for (int64_t i = 0; i < all.size(0); ++i) {
      seen.insert(all[i].item<int64_t>());
    }
  };

  accelerate::StateDict saved;
  {
    auto loader = accelerator.prepare(make_loader());
    int num_batches = 0;
    for (auto& batch : loader) {
      note(batch);
      if (++num_batches == 2) {
        saved = loader.state_dict();
        break; // e.g. the machine shuts down
      }
    }
    accelerator.print("stopped after ", seen.size(), " samples");
  }

  // Imagine a new process here. The number of processes may be different.
  auto loader = accelerator.prepare(make_loader());
  loader.load_state_dict(saved);
  for (auto& batch : loader) {
    note(batch);
  }
  const std::set<int64_t> distinct(seen.begin(), seen.end());
  accelerator.print(
      "saw ", seen.size(), " samples, ", distinct.size(), " of them distinct");
}
