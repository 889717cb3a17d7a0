// SPDX-License-Identifier: Apache-2.0
// The data, the model and the reports of the plain and the accelerated example.
#pragma once

#include <accelerate/process.h>
#include <accelerate/state/tree.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <tuple>

namespace spirals {

/// A point in the plane, and the index of its spiral (one of two).
struct Batch {
  torch::Tensor point;
  torch::Tensor label;
};
inline auto tensor_fields(Batch& b) {
  return std::tie(b.point, b.label);
}

inline Batch to(Batch batch, torch::Device device) {
  return {batch.point.to(device), batch.label.to(device)};
}

class SpiralDataset {
 public:
  size_t size() const { return 512; }
  Batch get(int64_t index) const {
    const auto turn = 0.3 + static_cast<double>(index) / 512;
    const auto label = index % 2;
    const double angle = 2 * M_PI * (turn + 0.5 * static_cast<double>(label));
    return {
        torch::tensor({turn * std::cos(angle), turn * std::sin(angle)})
            .to(torch::kFloat),
        torch::tensor(label)};
  }
};

struct Output {
  torch::Tensor loss;
  torch::Tensor logits;
};
inline auto tensor_fields(Output& o) {
  return std::tie(o.loss, o.logits);
}

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl()
      : layers(
            torch::nn::Linear(2, 64),
            torch::nn::Tanh(),
            torch::nn::Linear(64, 64),
            torch::nn::Tanh(),
            torch::nn::Linear(64, 2)) {
    register_module("layers", layers);
  }
  Output forward(const Batch& batch) {
    auto logits = layers->forward(batch.point);
    return {torch::cross_entropy_loss(logits, batch.label), logits};
  }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Classifier);

/// Prints the loss of an epoch, once per run.
inline void report(int epoch, const torch::Tensor& loss) {
  if (accelerate::detect_topology().is_main()) {
    std::printf("epoch %2d  loss %.4f\n", epoch, loss.item<double>());
    std::fflush(stdout);
  }
}

/// If there is an argument, writes all parameters as raw bytes to `argv[1]` +
/// "." + rank. `tests/examples/runs_test.py` compares these files.
inline void
save(const std::vector<torch::Tensor>& parameters, int argc, char** argv) {
  if (argc < 2) {
    return;
  }
  const int rank = accelerate::detect_topology().rank;
  std::ofstream file(
      std::string(argv[1]) + "." + std::to_string(rank), std::ios::binary);
  for (const auto& parameter : parameters) {
    const auto values = parameter.detach().cpu().contiguous();
    file.write(
        static_cast<const char*>(values.data_ptr()),
        static_cast<std::streamsize>(values.nbytes()));
  }
}

} // namespace spirals
