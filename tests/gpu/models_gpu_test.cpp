// SPDX-License-Identifier: Apache-2.0
// GPU-specific code of models: padded vocabularies, and packed sequences with
// flash attention.
#include <accelerate/accelerate.h>
#include <accelerate/models.h>
#include <accelerate/models/packing.h>
#include <accelerate/training/precision.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

// 333 is not a multiple of 64, and 2 x 200 rows are enough to pad.
constexpr const char* kConfig = R"({"model_type": "gpt2", "vocab_size": 333,
  "n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 2,
  "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})";

TEST(PaddedVocabulary, ShowsNeitherInLogitsNorInGradients) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  torch::manual_seed(3);
  auto model = models::AutoModelForCausalLM::from_config(
      models::ModelConfig::parse(kConfig));
  model->to(torch::kCUDA);
  const auto ids = torch::randint(
      333, {2, 200}, torch::TensorOptions(torch::kCUDA).dtype(torch::kLong));
  const models::ModelInputs inputs{.input_ids = ids, .labels = ids};
  const auto exact = model->forward(inputs);
  exact.loss.backward();
  const auto weight = model->named_parameters()["transformer.wte.weight"];
  const auto exact_gradient = weight.grad().clone();
  model->zero_grad();
  models::ModelOutput output;
  {
    const AutocastGuard guard(at::kCUDA, Precision::kBf16);
    output = model->forward(inputs);
  }
  output.loss.backward();
  EXPECT_EQ(output.logits.sizes(), exact.logits.sizes());
  EXPECT_EQ(output.logits.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{333, 64}));
  ASSERT_EQ(weight.grad().sizes(), weight.sizes());
  // bf16 has 8 bits; sums of 64 products of size 0.02.
  EXPECT_LE((output.logits - exact.logits).abs().max().item<double>(), 2e-2);
  EXPECT_NEAR(output.loss.item<double>(), exact.loss.item<double>(), 1e-2);
  const auto difference = (weight.grad() - exact_gradient).norm();
  EXPECT_LE(
      difference.item<double>(), 2e-2 * exact_gradient.norm().item<double>());
}

using models::ModelInputs;

ModelInputs on_gpu(ModelInputs inputs) {
  return tree::map(std::move(inputs), [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(torch::kCUDA) : tensor;
  });
}

/// Seven sequences of 1 to 90 tokens, padded.
ModelInputs padded_batch(uint64_t seed) {
  torch::manual_seed(seed);
  const int64_t B = 7;
  const int64_t T = 90;
  auto lengths = torch::randint(1, T + 1, {B, 1}, torch::kLong);
  lengths[0] = T;
  lengths[1] = 1;
  const auto mask = torch::arange(T).lt(lengths).to(torch::kLong);
  return {
      .input_ids = torch::randint(2, 300, {B, T}, torch::kLong) * mask,
      .attention_mask = mask,
      .labels = torch::randint(0, 2, {B}, torch::kLong)};
}

const models::PackOptions kRow{
    .num_tokens = 704,
    .num_sequences = 20,
    .max_length = 96};

/// Two blocks; heads of 32 channels, of which Llama's share keys.
const std::map<std::string, const char*> kConfigs = {
    {"bert", R"({"model_type": "bert", "vocab_size": 300, "hidden_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 256, "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0, "initializer_range": 0.1})"},
    {"gpt2", R"({"model_type": "gpt2", "vocab_size": 300, "n_embd": 128,
        "n_layer": 2, "n_head": 4, "n_positions": 100, "resid_pdrop": 0,
        "embd_pdrop": 0, "attn_pdrop": 0, "pad_token_id": 0,
        "initializer_range": 0.1})"},
    {"llama", R"({"model_type": "llama", "vocab_size": 300,
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
        "pad_token_id": 0, "initializer_range": 0.1})"}};

std::shared_ptr<models::PretrainedModel> make_classifier(
    const std::string& name) {
  torch::manual_seed(4);
  return models::AutoModelForSequenceClassification::from_config(
      models::ModelConfig::parse(kConfigs.at(name)));
}

struct Answer {
  at::Tensor logits;
  /// Of all parameters that have one, concatenated.
  at::Tensor gradient;
};

Answer answer_of(
    const std::string& name,
    at::ScalarType type,
    const ModelInputs& inputs) {
  const auto model = make_classifier(name);
  model->to(torch::kCUDA, type);
  const auto output = model->forward(on_gpu(inputs));
  output.loss.backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model->parameters()) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad().flatten().to(torch::kFloat));
    }
  }
  return {output.logits.to(torch::kFloat), torch::cat(gradients)};
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

class PackedOnGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no GPU";
    }
  }
};

TEST_P(PackedOnGpu, PredictsAndTrainsAsPadded) {
  const auto padded = padded_batch(1);
  const auto exact = answer_of(GetParam(), torch::kFloat, padded);
  const auto rounded = answer_of(GetParam(), torch::kBFloat16, padded);
  for (const auto& options : {models::PackOptions(), kRow}) {
    const auto inputs = models::pack(padded, options);
    const auto check = [&](at::ScalarType type,
                           double logits,
                           double gradient) {
      const auto packed = answer_of(GetParam(), type, inputs);
      EXPECT_LE(distance(packed.logits.narrow(0, 0, 7), exact.logits), logits);
      EXPECT_LE(distance(packed.gradient, exact.gradient), gradient);
    };
    // float32, whose products may be made of tensor cores' shorter numbers.
    check(torch::kFloat, 1e-4, 1e-3);
    // As far as the padded batch is, and a half.
    check(
        torch::kBFloat16,
        1.5 * distance(rounded.logits, exact.logits) + 1e-3,
        1.5 * distance(rounded.gradient, exact.gradient) + 1e-3);
  }
}

// Batches of one shape with different lengths: replays must read the current
// ones.
TEST_P(PackedOnGpu, IsCapturedWithMasterWeights) {
  const auto train = [&](bool is_captured) {
    auto model = make_classifier(GetParam());
    Accelerator accelerator(
        {.mixed_precision = Precision::kBf16, .master_weights = true});
    optim::AdamW adamw(model->parameters(), {.lr = 1e-3});
    auto [net, opt] = accelerator.prepare(model, adamw);
    const auto function =
        [&, &net = net, &opt = opt](const ModelInputs& batch) {
          const auto loss = net(batch).loss;
          accelerator.backward(loss);
          opt.step();
          opt.zero_grad();
          return loss;
        };
    auto step = accelerator.capture(function);
    std::vector<double> losses;
    for (uint64_t i = 0; i < 10; ++i) {
      const auto batch = on_gpu(models::pack(padded_batch(i), kRow));
      losses.push_back(
          (is_captured ? step(batch) : function(batch)).item<double>());
    }
    EXPECT_EQ(step.refusal(), "");
    EXPECT_EQ(step.num_replays(), is_captured ? 8u : 0u);
    return losses;
  };
  const auto captured = train(true);
  const auto plain = train(false);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(captured[i], plain[i], 0.02) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    PackedOnGpu,
    ::testing::Values("bert", "gpt2", "llama"),
    [](const auto& info) { return std::string(info.param); });

} // namespace
} // namespace accelerate
