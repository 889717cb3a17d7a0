// SPDX-License-Identifier: Apache-2.0
// What models do on a GPU alone: padded vocabularies.
#include <accelerate/models.h>
#include <accelerate/precision.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

// 333 is no multiple of 64, and 2 x 200 rows are enough to pad.
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

} // namespace
} // namespace accelerate
