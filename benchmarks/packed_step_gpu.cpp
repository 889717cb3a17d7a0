// SPDX-License-Identifier: Apache-2.0
// Our side of packed_step_gpu.py: samples per second of training a
// BERT-base-sized classifier in bf16 on a GPU with texts of real lengths.
//
//     packed_step_gpu padded|grouped|packed LENGTHS TOKENS DROPOUT
//
// LENGTHS has a line "tokens texts" for each length. A step has TOKENS tokens:
// `padded` fills TOKENS / 128 rows of 128, `grouped` as many rows of texts of
// similar length, which are padded to their longest, rounded up to 16;
// `packed` leaves padding out. Weights in bf16 with master weights; captured.
#include <accelerate/accelerate.h>
#include <accelerate/data/packed_batches.h>
#include <accelerate/models.h>
#include <accelerate/models/packing.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

using accelerate::models::ModelInputs;
using Batches = std::vector<std::vector<int64_t>>;

constexpr int64_t kMaxLength = 128;

std::vector<int64_t> read_lengths(const char* file) {
  std::vector<int64_t> lengths;
  std::ifstream in(file);
  for (int64_t length = 0, count = 0; in >> length >> count;) {
    lengths.insert(lengths.end(), static_cast<size_t>(count), length);
  }
  return lengths;
}

/// An epoch's batches of texts, and how they become tensors.
struct Case {
  Batches batches;
  accelerate::PaddingOptions padding = {};
  std::optional<accelerate::models::PackOptions> packing = {};
};

Case make_case(
    const std::string& kind,
    const std::vector<int64_t>& lengths,
    int64_t num_tokens) {
  using namespace accelerate;
  const auto size = static_cast<int64_t>(lengths.size());
  const int64_t rows = num_tokens / kMaxLength;
  if (kind == "packed") {
    // Texts have 39 tokens on average: three or four for a row of padding.
    const int64_t num_sequences = 4 * rows;
    return {
        .batches = PackedBatchSampler(
                       std::make_shared<RandomSampler>(size),
                       lengths,
                       {num_tokens, num_sequences, kMaxLength})
                       .batches(0, 0),
        .packing = models::PackOptions{num_tokens, num_sequences, kMaxLength}};
  }
  const auto order = kind == "grouped"
                         ? LengthGroupedSampler(lengths, rows).order(0, 0)
                         : RandomSampler(size).order(0, 0);
  Case c;
  for (size_t i = 0; i + static_cast<size_t>(rows) <= order.size();
       i += static_cast<size_t>(rows)) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(i);
    c.batches.emplace_back(begin, begin + rows);
  }
  if (kind == "grouped") {
    c.padding.multiple_of = 16;
  } else {
    c.padding.length = kMaxLength;
  }
  return c;
}

ModelInputs make_batch(
    const Case& c,
    const std::vector<int64_t>& indices,
    const std::vector<int64_t>& lengths) {
  std::vector<ModelInputs> samples;
  for (const int64_t index : indices) {
    samples.push_back(
        {.input_ids = torch::randint(
             1000, 30000, {lengths[static_cast<size_t>(index)]}, torch::kLong),
         .labels = torch::randint(0, 2, {}, torch::kLong)});
  }
  auto batch = accelerate::PaddingCollator(c.padding)(samples);
  return c.packing ? pack(batch, *c.packing) : batch;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 5 || !torch::cuda::is_available()) {
    std::fputs(
        "usage: packed_step_gpu padded|grouped|packed LENGTHS TOKENS DROPOUT, "
        "on a GPU\n",
        stderr);
    return 2;
  }
  const std::string dropout = argv[4];
  const auto lengths = read_lengths(argv[2]);
  const auto c = make_case(argv[1], lengths, std::atoll(argv[3]));
  accelerate::Accelerator accelerator(
      {.mixed_precision = accelerate::Precision::kBf16,
       .master_weights = true,
       .outputs_to_fp32 = false});
  auto model =
      accelerate::models::AutoModelForSequenceClassification::from_config(
          accelerate::models::ModelConfig::parse(
              R"({"model_type": "bert", "hidden_dropout_prob": )" + dropout +
              R"(, "attention_probs_dropout_prob": )" + dropout + "}"),
          {.num_labels = 2});
  accelerate::optim::AdamW adam(model->parameters(), {.lr = 3e-5});
  auto [net, optimizer] = accelerator.prepare(model, adam);
  auto step = accelerator.capture(
      [&, &net = net, &optimizer = optimizer](const ModelInputs& batch) {
        const auto loss = net(batch).loss;
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        return loss;
      });

  // The last batch of an epoch may be a short one.
  const size_t num_batches = std::min<size_t>(c.batches.size() - 1, 120);
  std::vector<ModelInputs> inputs;
  int64_t num_samples = 0;
  int64_t num_real = 0;
  int64_t num_computed = 0;
  for (size_t i = 0; i < num_batches; ++i) {
    num_samples += static_cast<int64_t>(c.batches[i].size());
    for (const int64_t index : c.batches[i]) {
      num_real += lengths[static_cast<size_t>(index)];
    }
    inputs.push_back(accelerate::tree::map(
        make_batch(c, c.batches[i], lengths), [&](const at::Tensor& tensor) {
          return tensor.defined() ? tensor.to(accelerator.device()) : tensor;
        }));
    num_computed += inputs.back().input_ids.numel();
  }
  at::Tensor loss;
  const auto run = [&] {
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& batch : inputs) {
      loss = step(batch);
    }
    torch::cuda::synchronize();
    const std::chrono::duration<double> time =
        std::chrono::steady_clock::now() - begin;
    return static_cast<double>(num_samples) / time.count();
  };
  run();
  constexpr int kRounds = 5;
  std::vector<double> rates;
  for (int round = 0; round < kRounds; ++round) {
    rates.push_back(run());
  }
  std::nth_element(rates.begin(), rates.begin() + kRounds / 2, rates.end());
  std::printf("%f\n", rates[kRounds / 2]);
  const auto per_step = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(num_batches);
  };
  std::fprintf(
      stderr,
      "%.1f samples, %.0f tokens and %.0f computed in a step of %.2f ms, "
      "%zu graphs, %zu replays, loss %.3f\n",
      per_step(num_samples),
      per_step(num_real),
      per_step(num_computed),
      1e3 * per_step(num_samples) / rates[kRounds / 2],
      step.num_graphs(),
      step.num_replays(),
      loss.item<double>());
}
