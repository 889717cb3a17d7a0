// SPDX-License-Identifier: Apache-2.0
// The network and the data of tools/make_synchronisation_reference.py.
#pragma once

#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"

namespace accelerate::testing {

inline const nlohmann::json& reference() {
  static const auto data = nlohmann::json::parse(
      std::ifstream(std::string(TEST_REFERENCE_DIR) + "/synchronisation.json"));
  return data;
}

inline torch::Tensor tensor_of(const nlohmann::json& values) {
  return torch::tensor(values.get<std::vector<double>>(), torch::kDouble)
      .to(torch::kFloat);
}

struct ReferenceNetImpl : torch::nn::Module {
  ReferenceNetImpl() : first(6, 12), norm(12), second(12, 4) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    torch::NoGradGuard no_grad;
    const auto initial = tensor_of(reference()["initial"]);
    int64_t begin = 0;
    for (auto& parameter : parameters()) {
      const int64_t size = parameter.numel();
      parameter.copy_(initial.narrow(0, begin, size).view(parameter.sizes()));
      begin += size;
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::tanh(norm(first(x))));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};
TORCH_MODULE(ReferenceNet);

inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// All values in one row, followed by buffers if requested.
inline torch::Tensor values_of(torch::nn::Module& module, bool with_buffers) {
  std::vector<torch::Tensor> parts;
  auto tensors = module.parameters();
  if (with_buffers) {
    const auto buffers = module.buffers();
    tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  }
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.detach().to(torch::kFloat).flatten());
  }
  return torch::cat(parts);
}

/// One rank of the tool's training.
struct ReferenceTraining {
  explicit ReferenceTraining(const AcceleratorOptions& options)
      : accelerator(options),
        model(),
        sgd(model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.5)),
        net(accelerator.prepare(model)),
        optimizer(accelerator.prepare(sgd)),
        inputs(tensor_of(reference()["inputs"]).view({-1, 6})),
        targets(tensor_of(reference()["targets"]).view({-1, 4})) {}

  double step(int64_t number) {
    const int64_t batch = reference()["batch"];
    const int64_t ranks = reference()["max_ranks"];
    const int64_t first =
        (number * ranks + accelerator.process_index()) * batch;
    auto loss = torch::mse_loss(
        net(inputs.narrow(0, first, batch)), targets.narrow(0, first, batch));
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    return loss.item<double>();
  }

  Accelerator accelerator;
  ReferenceNet model;
  torch::optim::SGD sgd;
  PreparedModel<ReferenceNetImpl> net;
  PreparedOptimizer optimizer;
  torch::Tensor inputs, targets;
};

/// Whether all ranks hold the same bits.
inline bool same_on_all(const ProcessGroup& group, const torch::Tensor& own) {
  const auto rows = group.all_gather(own);
  return rows.equal(rows[0].expand_as(rows));
}

} // namespace accelerate::testing
