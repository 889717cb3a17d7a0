// SPDX-License-Identifier: Apache-2.0
// Time per sample of a loader over tokenised text in memory: 128 tokens, three
// tensors, batches of 32 per rank. Run by data_loader.py.
#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <string>

namespace {

constexpr int64_t kSamples = 20000;
constexpr int64_t kTokens = 128;
constexpr int64_t kBatch = 32;
constexpr int64_t kSampleBytes = 3 * kTokens * 8;

// What went over the loopback interface so far, with the headers of TCP and IP.
int64_t bytes_on_loopback() {
  std::ifstream file("/sys/class/net/lo/statistics/tx_bytes");
  int64_t bytes = 0;
  file >> bytes;
  return bytes;
}

template <class Loader>
int64_t run_epoch(Loader& loader) {
  int64_t num_samples = 0;
  for (auto& batch : loader) {
    num_samples += batch[0].size(0);
  }
  return num_samples;
}

} // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "workers_0";
  const bool dispatches = mode == "dispatch";
  const int num_workers = mode == "workers_2" ? 2 : 0;
  const int num_epochs = argc > 2 ? std::stoi(argv[2]) : 10;

  accelerate::Accelerator accelerator({.cpu = true});
  const auto ids = torch::randint(0, 30000, {kSamples, kTokens});
  accelerate::TensorDataset data(
      {ids, torch::ones_like(ids), torch::zeros_like(ids)});
  auto loader = accelerator.prepare(accelerate::DataLoader(
      data,
      {.batch_size = kBatch,
       .shuffle = true,
       .seed = 1,
       .num_workers = num_workers,
       .dispatch_batches = dispatches}));
  run_epoch(loader);
  accelerator.wait_for_everyone();
  const int64_t bytes_before = bytes_on_loopback();
  const auto begin = std::chrono::steady_clock::now();
  int64_t num_own = 0;
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    num_own += run_epoch(loader);
  }
  accelerator.wait_for_everyone();
  const std::chrono::duration<double, std::micro> time =
      std::chrono::steady_clock::now() - begin;
  const int64_t bytes = bytes_on_loopback() - bytes_before;
  if (accelerator.is_main_process()) {
    // Rank 0 keeps its own share: only the others' goes over the wire.
    const int64_t sent =
        num_own * (accelerator.num_processes() - 1) * kSampleBytes;
    std::cout << time.count() /
                     static_cast<double>(num_own * accelerator.num_processes())
              << ' '
              << (sent > 0
                      ? static_cast<double>(bytes) / static_cast<double>(sent)
                      : 0.0)
              << '\n';
  }
}
