// SPDX-License-Identifier: Apache-2.0
// Our side of model_step_gpu.py: milliseconds of one training step in bf16 on a
// GPU, of a BERT-base-sized classifier, of GPT-2 with 124 M parameters or of a
// Llama with 1.2 G.
//
//     model_step_gpu bert|gpt2|llama BATCH TOKENS DROPOUT STEPS
//         [master_weights] [capture] [clip] [profile]
//
// `profile` also says where the time of five more steps goes.
#include <accelerate/accelerate.h>
#include <accelerate/models.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;
using accelerate::models::ModelInputs;

struct Case {
  std::string model;
  int64_t batch, tokens;
  std::string dropout;
  int steps;
  bool master_weights = false;
  bool capture = false;
  bool clip = false;
  bool profile = false;
};

std::shared_ptr<accelerate::models::PretrainedModel> make_model(const Case& c) {
  using namespace accelerate::models;
  if (c.model == "bert") {
    return AutoModelForSequenceClassification::from_config(
        ModelConfig::parse(
            R"({"model_type": "bert", "hidden_dropout_prob": )" + c.dropout +
            R"(, "attention_probs_dropout_prob": )" + c.dropout + "}"),
        {.num_labels = 2});
  }
  if (c.model == "llama") { // As Llama 3.2 1B.
    return AutoModelForCausalLM::from_config(ModelConfig::parse(
        R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048,
            "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 64, "rope_theta": 500000.0,
            "max_position_embeddings": 131072, "tie_word_embeddings": true,
            "attention_dropout": )" +
        c.dropout + "}"));
  }
  return AutoModelForCausalLM::from_config(ModelConfig::parse(
      R"({"model_type": "gpt2", "resid_pdrop": )" + c.dropout +
      R"(, "embd_pdrop": )" + c.dropout + R"(, "attn_pdrop": )" + c.dropout +
      "}"));
}

ModelInputs make_inputs(const Case& c, c10::Device device) {
  const auto ids =
      torch::randint(1000, 30000, {c.batch, c.tokens}, torch::kLong).to(device);
  if (c.model != "bert") {
    return {.input_ids = ids, .labels = ids};
  }
  ModelInputs inputs{
      .input_ids = ids,
      .attention_mask =
          torch::ones({c.batch, c.tokens}, torch::kLong).to(device),
      .labels = torch::randint(0, 2, {c.batch}, torch::kLong).to(device)};
  // A quarter of the batch is half as long: a padded batch, as in training.
  inputs.attention_mask.slice(0, 0, c.batch / 4).slice(1, c.tokens / 2).zero_();
  return inputs;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 6 || !torch::cuda::is_available()) {
    std::fputs(
        "usage: model_step_gpu bert|gpt2|llama BATCH TOKENS DROPOUT STEPS "
        "[master_weights] [capture] [clip] [profile], on a GPU\n",
        stderr);
    return 2;
  }
  Case c{
      .model = argv[1],
      .batch = std::atoll(argv[2]),
      .tokens = std::atoll(argv[3]),
      .dropout = argv[4],
      .steps = std::atoi(argv[5])};
  for (int i = 6; i < argc; ++i) {
    c.master_weights =
        c.master_weights || std::string_view(argv[i]) == "master_weights";
    c.capture = c.capture || std::string_view(argv[i]) == "capture";
    c.clip = c.clip || std::string_view(argv[i]) == "clip";
    c.profile = c.profile || std::string_view(argv[i]) == "profile";
  }
  const auto start = Clock::now();
  accelerate::Accelerator accelerator(
      {.mixed_precision = accelerate::Precision::kBf16,
       .master_weights = c.master_weights,
       .outputs_to_fp32 = false});
  auto model = make_model(c);
  accelerate::optim::AdamW adam(model->parameters(), {.lr = 3e-5});
  auto [net, optimizer] = accelerator.prepare(model, adam);
  const auto inputs = make_inputs(c, accelerator.device());
  const auto function =
      [&, &net = net, &optimizer = optimizer](const ModelInputs& batch) {
        const auto loss = net(batch).loss;
        accelerator.backward(loss);
        if (c.clip) {
          accelerator.clip_grad_norm_(model->parameters(), 1.0);
        }
        optimizer.step();
        optimizer.zero_grad();
        return loss;
      };
  auto captured = accelerator.capture(function);
  at::Tensor loss;
  const auto run = [&](int count) {
    const auto begin = Clock::now();
    for (int step = 0; step < count; ++step) {
      loss = c.capture ? captured(inputs) : function(inputs);
    }
    torch::cuda::synchronize();
    return Milliseconds(Clock::now() - begin).count();
  };
  run(1);
  const double first = Milliseconds(Clock::now() - start).count();
  run(9);
  std::vector<double> times;
  constexpr int kRounds = 5;
  for (int round = 0; round < kRounds; ++round) {
    times.push_back(run(c.steps) / c.steps);
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  std::printf("%f\n", times[kRounds / 2]);
  std::fprintf(
      stderr,
      "first step after %.1f s, loss %.4f, %zu replays, at most %.1f GiB\n",
      first / 1e3,
      loss.item<double>(),
      captured.num_replays(),
      static_cast<double>(c10::getDeviceAllocator(c10::DeviceType::CUDA)
                              ->getDeviceStats(0)
                              .allocated_bytes[0]
                              .peak) /
          (1 << 30));
  if (c.profile) {
    constexpr size_t kRows = 40;
    auto profile = accelerator.profile();
    run(5);
    profile.stop();
    std::fputs(profile.table(kRows).c_str(), stderr);
  }
}
