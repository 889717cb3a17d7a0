// SPDX-License-Identifier: Apache-2.0
#include "training/selftest/selftest.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "accelerate/accelerate.h"

namespace accelerate {
namespace {

constexpr int64_t kSamples = 37;
constexpr int64_t kBatch = 4;
constexpr int64_t kSteps = 5;

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw Error("[test] " + what);
  }
}

void check_collectives(Accelerator& accelerator) {
  const int64_t n = accelerator.num_processes();
  auto own = torch::full({2}, accelerator.process_index() + 1.0);
  own = own.to(accelerator.device());
  require(
      accelerator.reduce(own)[0].item<double>() ==
          static_cast<double>(n * (n + 1)) / 2,
      "The sum over all ranks is wrong");
  require(
      accelerator.gather(own).size(0) == 2 * n,
      "The gathered tensor does not contain the values of all ranks");
  accelerator.broadcast(own, static_cast<int>(n - 1));
  require(
      own[0].item<double>() == static_cast<double>(n),
      "The broadcast value is wrong");
}

void check_loader(Accelerator& accelerator) {
  auto loader = accelerator.prepare(DataLoader(
      TensorDataset({torch::arange(kSamples)}),
      {.batch_size = kBatch, .shuffle = true, .even_batches = false}));
  std::vector<torch::Tensor> seen = {torch::empty({0}, torch::kLong)};
  for (auto& batch : loader) {
    seen.push_back(batch[0].cpu());
  }
  const auto all = std::get<0>(accelerator.gather(torch::cat(seen)).sort());
  require(
      all.equal(torch::arange(kSamples)),
      "Together, the ranks do not see each sample exactly once");
}

/// Fits a line. Every rank takes its rows of each global batch of `data`.
torch::Tensor train(Accelerator* accelerator, const torch::Tensor& data) {
  torch::manual_seed(3);
  torch::nn::Linear model(3, 1);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const int64_t ranks =
      accelerator != nullptr ? accelerator->num_processes() : 1;
  const int64_t rank =
      accelerator != nullptr ? accelerator->process_index() : 0;
  const auto rows = data.size(1) / ranks;
  if (accelerator == nullptr) {
    for (int64_t step = 0; step < kSteps; ++step) {
      sgd.zero_grad();
      model(data[step]).square().mean().backward();
      sgd.step();
    }
  } else {
    auto [net, optimizer] = accelerator->prepare(model, sgd);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto rows_of_rank = data[step].narrow(0, rank * rows, rows);
      do {
        optimizer.zero_grad();
        accelerator->backward(
            net(rows_of_rank.to(accelerator->device())).square().mean());
        optimizer.step();
        // Repeats until the fp16 gradient scaler has found its scale.
      } while (optimizer.step_was_skipped());
    }
  }
  return torch::cat({model->weight.flatten(), model->bias}).detach().cpu();
}

void check_training(Accelerator& accelerator) {
  torch::manual_seed(1);
  const auto data =
      torch::randn({kSteps, kBatch * accelerator.num_processes(), 3});
  const auto alone = train(nullptr, data);
  const auto together = train(&accelerator, data);
  // Sums are grouped differently, which changes the last few units. bf16 rounds
  // each of the five gradients by up to 2^-8 of about 1, and a tenth of this
  // reaches the weights. The learned values are about 0.3.
  const bool is_full = accelerator.mixed_precision() == Precision::kNo;
  require(
      is_full ? together.allclose(alone, 1e-4, 1e-5)
              : together.allclose(alone, 0, 1e-2),
      "Training on all ranks differs from training on one");
  const auto all = accelerator.gather(together.unsqueeze(0));
  require(
      all.eq(all[0]).all().item<bool>(),
      "The ranks finished training with different parameters");
}

} // namespace

void run_selftest() {
  Accelerator accelerator;
  check_collectives(accelerator);
  accelerator.print("collectives: ok");
  check_loader(accelerator);
  accelerator.print("loader shards: ok");
  check_training(accelerator);
  accelerator.print(
      "training on ",
      accelerator.num_processes(),
      " process(es), ",
      accelerator.device(),
      ": ok");
  accelerator.end_training();
}

} // namespace accelerate
