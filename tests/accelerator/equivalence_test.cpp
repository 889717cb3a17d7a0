// SPDX-License-Identifier: Apache-2.0
// N ranks of batch b train like one rank of batch N*b, and like PyTorch's DDP.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "support/rank_bodies.h"

namespace accelerate::testing {
namespace {

using torch::Tensor;

constexpr int64_t kGlobalBatch = 8;

nlohmann::json reference() {
  std::ifstream file(std::string(TEST_REFERENCE_DIR) + "/ddp_reference.json");
  return nlohmann::json::parse(file);
}

Tensor tensor_of(const nlohmann::json& values, torch::IntArrayRef shape) {
  return torch::tensor(values.get<std::vector<double>>(), torch::kDouble)
      .to(torch::kFloat)
      .reshape(shape);
}

struct NetImpl : torch::nn::Module {
  NetImpl() : first(5, 8), second(8, 3) {
    register_module("first", first);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Net);

Net net_of(const nlohmann::json& initial) {
  Net net;
  torch::NoGradGuard no_grad;
  size_t next = 0;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(tensor_of(initial[next++], parameter.sizes()));
  }
  return net;
}

Tensor flat(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> parts;
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.flatten());
  }
  return torch::cat(parts);
}

/// The training of tools/make_ddp_reference.py. First gradients, then weights.
std::string train(const AcceleratorOptions& options) {
  const auto data = reference();
  Accelerator accelerator(options);
  DataLoader dataloader(
      TensorDataset(
          {tensor_of(data["inputs"], {-1, 5}),
           tensor_of(data["targets"], {-1, 3})}),
      {.batch_size = kGlobalBatch / accelerator.num_processes()});
  Net model = net_of(data["initial"]);
  torch::optim::SGD sgd(
      model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [loader, net, optimizer] = accelerator.prepare(dataloader, model, sgd);
  std::string text;
  for (auto& batch : loader) {
    auto loss = torch::mse_loss(net(batch[0]), batch[1]);
    accelerator.backward(loss);
    if (text.empty()) {
      std::vector<Tensor> gradients;
      for (const auto& parameter : net->parameters()) {
        gradients.push_back(parameter.grad());
      }
      text = to_text(flat(gradients));
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return text + to_text(flat(net->parameters()));
}

const RankBodyRegistration kTrain("train", train);
const RankBodyRegistration kTrainOnCpu(
    "train on the CPU",
    [](AcceleratorOptions options) {
      options.cpu = true;
      return train(options);
    });
const RankBodyRegistration kTrainByNccl(
    "train by NCCL",
    [](AcceleratorOptions options) {
      options.connection.backend = Backend::kNccl;
      return train(options);
    });

/// First gradients and trained weights of PyTorch's DDP.
Tensor expected_values() {
  const auto data = reference();
  std::vector<double> expected;
  for (const char* key : {"first_gradients", "trained"}) {
    for (const auto& tensor : data[key]) {
      const auto values = tensor.get<std::vector<double>>();
      expected.insert(expected.end(), values.begin(), values.end());
    }
  }
  return torch::tensor(expected, torch::kDouble);
}

double largest_difference(const std::string& text) {
  return (from_text(text) - expected_values()).abs().max().item<double>();
}

class Equivalence : public ::testing::TestWithParam<std::tuple<RankKind, int>> {
};
INSTANTIATE_TEST_SUITE_P(
    Ranks,
    Equivalence,
    ::testing::Combine(
        ::testing::Values(RankKind::kThreads, RankKind::kProcesses),
        ::testing::Values(1, 2, 4)));

TEST_P(Equivalence, OfManyRanksAgreesWithOneAndWithPyTorch) {
  const auto [kind, num_ranks] = GetParam();
  const auto texts = run_body(kind, num_ranks, "train on the CPU");
  // Bit-identical on all ranks: the text is exact.
  for (const auto& text : texts) {
    EXPECT_EQ(text, texts[0]);
  }
  // Sums of up to 8 samples are grouped differently for other N: a few units
  // in the last place of fp32, on values around 1.
  EXPECT_LT(largest_difference(texts[0]), 1e-6);
}

// On a GPU sums are grouped differently again.
constexpr double kGpuTolerance = 2e-6;

TEST(EquivalenceOnAGpu, OfOneNcclRankAgreesWithPyTorch) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  const auto texts = run_body(RankKind::kProcesses, 1, "train by NCCL");
  EXPECT_LT(largest_difference(texts[0]), kGpuTolerance);
}

TEST(EquivalenceOnAGpu, OfTwoProcessesOnOneGpuAgreesWithPyTorch) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  const auto texts = run_body(RankKind::kProcesses, 2, "train");
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_LT(largest_difference(texts[0]), kGpuTolerance);
}

} // namespace
} // namespace accelerate::testing
