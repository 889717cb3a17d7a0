// SPDX-License-Identifier: Apache-2.0
// The C++ sides of optimizer_step.py: milliseconds per AdamW step over tensors
// of the shapes of BERT-base, or gigabytes per second of memcpy.
//
//     optimizer_step ours|torch|memcpy cpu|cuda
#include <accelerate/optimizers.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int kWarmUp = 3;
constexpr int kBlocks = 12;

/// The same list as in optimizer_step_peer.py.
std::vector<std::vector<int64_t>> bert_base_shapes() {
  std::vector<std::vector<int64_t>> shapes = {
      {30522, 768}, {512, 768}, {2, 768}, {768}, {768}};
  for (int layer = 0; layer < 12; ++layer) {
    for (int projection = 0; projection < 4; ++projection) {
      shapes.insert(shapes.end(), {{768, 768}, {768}});
    }
    shapes.insert(
        shapes.end(),
        {{768}, {768}, {3072, 768}, {3072}, {768, 3072}, {768}, {768}, {768}});
  }
  shapes.insert(shapes.end(), {{768, 768}, {768}});
  return shapes;
}

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(end - start).count();
}

double milliseconds_per_step(
    torch::optim::Optimizer& optimizer,
    bool is_cuda,
    int steps) {
  std::vector<double> times;
  for (int block = -kWarmUp; block < kBlocks; ++block) {
    const double seconds = seconds_of([&] {
      for (int step = 0; step < steps; ++step) {
        optimizer.step();
      }
      if (is_cuda) {
        torch::cuda::synchronize();
      }
    });
    if (block >= 0) {
      times.push_back(1e3 * seconds / steps);
    }
  }
  // Other load only adds time.
  return *std::min_element(times.begin(), times.end());
}

double memcpy_gigabytes_per_second() {
  // Far beyond all caches; read once and written once.
  constexpr size_t kBytes = size_t{1} << 29;
  const auto from = torch::ones({kBytes / 4});
  const auto to = torch::ones({kBytes / 4});
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    best = std::min(best, seconds_of([&] {
                      std::memcpy(to.data_ptr(), from.data_ptr(), kBytes);
                    }));
  }
  return 2 * kBytes / best / 1e9;
}

} // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "ours";
  const std::string device = argc > 2 ? argv[2] : "cpu";
  if (kind == "memcpy") {
    std::printf("%f\n", memcpy_gigabytes_per_second());
    return 0;
  }
  std::vector<torch::Tensor> parameters;
  for (const auto& shape : bert_base_shapes()) {
    auto parameter = torch::rand(shape, torch::device(device));
    parameter.mutable_grad() = torch::rand_like(parameter);
    parameters.push_back(parameter.requires_grad_());
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (kind == "torch") {
    optimizer = std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(1e-3));
  } else {
    optimizer = std::make_unique<accelerate::optim::AdamW>(parameters);
  }
  const bool is_cuda = device != "cpu";
  std::printf(
      "%f\n", milliseconds_per_step(*optimizer, is_cuda, is_cuda ? 20 : 1));
}
