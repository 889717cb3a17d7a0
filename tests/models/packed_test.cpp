// SPDX-License-Identifier: Apache-2.0
// Packed batches: what `pack` returns and rejects. parity_test.cpp compares the
// outputs of models.
#include <accelerate/accelerate.h>
#include <accelerate/data/packed_batches.h>
#include <accelerate/models.h>
#include <accelerate/models/packing.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

namespace accelerate::testing {
namespace {

using models::ModelInputs;
using models::pack;
using models::PackOptions;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

ModelInputs padded_batch() {
  return {
      .input_ids = torch::tensor({{5, 6, 7}, {8, 9, 0}, {0, 4, 0}}),
      .attention_mask = torch::tensor({{1, 1, 1}, {1, 1, 0}, {0, 1, 0}}),
      .labels = torch::tensor({1, 0, 1})};
}

void expect_equal(const at::Tensor& ours, const at::Tensor& expected) {
  EXPECT_TRUE(torch::equal(ours, expected)) << ours << expected;
}

TEST(Pack, LeavesPaddingOut) {
  const auto packed = pack(padded_batch());
  expect_equal(packed.input_ids, torch::tensor({{5, 6, 7, 8, 9, 4}}));
  expect_equal(
      packed.packed_mask, torch::tensor({{1, 1, 1}, {1, 1, 0}, {1, 0, 0}}));
  expect_equal(packed.labels, torch::tensor({1, 0, 1}));
  EXPECT_FALSE(packed.attention_mask.defined());
  EXPECT_FALSE(packed.token_type_ids.defined());
}

TEST(Pack, PadsWithSequencesThatDoNotCount) {
  const auto packed = pack(
      padded_batch(), {.num_tokens = 11, .num_sequences = 6, .max_length = 4});
  expect_equal(
      packed.input_ids, torch::tensor({{5, 6, 7, 8, 9, 4, 0, 0, 0, 0, 0}}));
  expect_equal(
      packed.packed_mask,
      torch::tensor(
          {{1, 1, 1, 0},
           {1, 1, 0, 0},
           {1, 0, 0, 0},
           {1, 1, 1, 1},
           {1, 0, 0, 0},
           {0, 0, 0, 0}}));
  expect_equal(packed.labels, torch::tensor({1, 0, 1, -100, -100, -100}));
}

TEST(Pack, PacksLabelsAndPositionsOfTokens) {
  auto batch = padded_batch();
  batch.labels = torch::tensor({{5, -100, 7}, {8, 9, -100}, {1, 2, 3}});
  batch.position_ids = torch::tensor({{2, 1, 0}, {0, 1, 2}, {5, 6, 7}});
  batch.token_type_ids = torch::tensor({{0, 1, 1}, {0, 1, 0}, {0, 1, 0}});
  const auto packed = pack(batch, {.num_tokens = 7});
  expect_equal(packed.labels, torch::tensor({{5, -100, 7, 8, 9, 2, -100}}));
  expect_equal(packed.position_ids, torch::tensor({{2, 1, 0, 0, 1, 6, 0}}));
  expect_equal(packed.token_type_ids, torch::tensor({{0, 1, 1, 0, 1, 1, 0}}));
  EXPECT_EQ(packed.packed_mask.size(0), 4);
}

TEST(Pack, TakesABatchWithoutAMask) {
  const auto packed = pack({.input_ids = torch::tensor({{1, 2}, {3, 4}})});
  expect_equal(packed.input_ids, torch::tensor({{1, 2, 3, 4}}));
  expect_equal(packed.packed_mask, torch::tensor({{1, 1}, {1, 1}}));
}

TEST(Pack, RefusesWhatDoesNotFit) {
  const auto expect_refused =
      [](const ModelInputs& batch, const PackOptions& options, auto message) {
        EXPECT_THAT(
            [&] { pack(batch, options); },
            ThrowsMessage<UsageError>(HasSubstr(message)));
      };
  const auto batch = padded_batch();
  expect_refused(batch, {.num_tokens = 5}, "num_tokens = 6");
  expect_refused(batch, {.max_length = 2}, "max_length = 3");
  expect_refused(
      batch, {.num_tokens = 7, .num_sequences = 3}, "num_sequences = 4");
  expect_refused(pack(batch), {}, "Call pack() once");
  expect_refused({}, {}, "input_ids is missing");
  auto wrong = batch;
  wrong.attention_mask = torch::ones({3, 2});
  expect_refused(wrong, {}, "attention_mask has shape [3, 2]");
  wrong = batch;
  wrong.attention_mask[1].zero_();
  expect_refused(wrong, {}, "Row 1 of attention_mask has no token");
  wrong = padded_batch();
  wrong.labels = torch::ones({2});
  expect_refused(wrong, {}, "labels has shape [2]");
  wrong.labels = torch::ones({3});
  expect_refused(wrong, {.num_sequences = 4}, "Labels of type Float");
}

std::shared_ptr<models::PretrainedModel> small_bert() {
  torch::manual_seed(2);
  return models::AutoModelForSequenceClassification::from_config(
      models::ModelConfig::parse(R"({"model_type": "bert", "vocab_size": 11,
          "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 12, "max_position_embeddings": 4,
          "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0})"));
}

TEST(PackedForward, RejectsInvalidPackedBatches) {
  const auto model = small_bert();
  const auto expect_refused = [&](const ModelInputs& batch, auto message) {
    EXPECT_THAT(
        [&] { model->forward(batch); },
        ThrowsMessage<UsageError>(HasSubstr(message)));
  };
  auto batch = pack(padded_batch());
  batch.attention_mask = torch::ones({1, 6});
  expect_refused(batch, "attention_mask and packed_mask are both set");
  batch = pack(padded_batch());
  batch.packed_mask = torch::tensor({{1, 1, 1}, {1, 1, 0}, {0, 1, 0}});
  expect_refused(batch, "ones followed by zeros");
  batch.packed_mask = torch::tensor({{1, 1, 1}, {1, 1, 0}});
  expect_refused(batch, "has 5 ones");
  batch.input_ids = batch.input_ids.view({2, 3});
  expect_refused(batch, "input_ids has shape [2, 3]");
  // A row may be longer than the positions; a sequence may not.
  EXPECT_NO_THROW(model->forward(pack(padded_batch())));
  expect_refused(pack(padded_batch(), {.max_length = 5}), "has 4 positions");
  const auto causal = models::AutoModelForCausalLM::from_config(
      models::ModelConfig::parse(R"({"model_type": "gpt2", "vocab_size": 11,
          "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 9})"));
  EXPECT_THAT(
      [&] { causal->generate(pack(padded_batch())); },
      ThrowsMessage<UsageError>(HasSubstr("Packed prompts are not supported")));
}

TEST(PackedForward, TrainsTheSameWithActivationCheckpointing) {
  const auto model = small_bert();
  const auto gradients = [&](bool recomputes) {
    model->zero_grad();
    model->gradient_checkpointing_enable(recomputes);
    model->forward(pack(padded_batch())).loss.backward();
    std::vector<at::Tensor> copies;
    for (const auto& parameter : model->parameters()) {
      copies.push_back(parameter.grad().clone());
    }
    return copies;
  };
  const auto kept = gradients(false);
  const auto again = gradients(true);
  for (size_t i = 0; i < kept.size(); ++i) {
    expect_equal(again[i], kept[i]);
  }
}

// Two texts in a row: four of six tokens are predicted, those after the first
// of each. The packed loss must be composed of the losses of each text alone.
TEST(PackedForward, CountsTheLabelsOfTheLoss) {
  for (const char* config :
       {R"({"model_type": "gpt2", "vocab_size": 11, "n_embd": 8, "n_layer": 1,
            "n_head": 2, "n_positions": 9})",
        R"({"model_type": "llama", "vocab_size": 11, "hidden_size": 8,
            "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1})"}) {
    torch::manual_seed(4);
    const auto model = models::AutoModelForCausalLM::from_config(
        models::ModelConfig::parse(config));
    model->to(torch::kDouble);
    model->eval();
    ModelInputs padded{
        .input_ids = torch::tensor({{5, 6, 7, 1}, {8, 9, 0, 0}}),
        .attention_mask = torch::tensor({{1, 1, 1, 1}, {1, 1, 0, 0}}),
        .labels = torch::tensor({{5, 6, -100, 1}, {8, 9, -100, -100}})};
    double sum = 0;
    int64_t count = 0;
    for (const auto& text : {std::vector<int64_t>{5, 6, 7, 1}, {8, 9}}) {
      const auto ids = torch::tensor(text).unsqueeze(0);
      const auto logits = model->forward(ModelInputs{.input_ids = ids}).logits;
      for (size_t i = 1; i < text.size(); ++i) {
        if (text[i] == 7) {
          continue;
        }
        const auto row = static_cast<int64_t>(i) - 1;
        sum -= logits[0][row].log_softmax(-1)[text[i]].item<double>();
        ++count;
      }
    }
    for (const auto& batch :
         {padded, pack(padded), pack(padded, {.num_tokens = 9})}) {
      const auto labels = models::causal_labels(batch);
      EXPECT_EQ(labels.sizes(), batch.input_ids.sizes());
      EXPECT_EQ(num_loss_tokens(labels), count);
      const auto output = model->forward(batch);
      // Doubles throughout, except that angles of llama are float32, as in
      // transformers.
      EXPECT_NEAR(
          output.loss.item<double>() * static_cast<double>(count), sum, 1e-12);
      Accelerator accelerator(AcceleratorOptions{.cpu = true});
      Perplexity perplexity(accelerator);
      perplexity.update(output.logits, labels);
      EXPECT_NEAR(
          perplexity.compute(),
          std::exp(sum / static_cast<double>(count)),
          1e-12);
    }
  }
  EXPECT_THAT(
      [] { models::causal_labels(padded_batch()); },
      ThrowsMessage<UsageError>(HasSubstr("labels is of shape [3]")));
}

// Norms and softmax widen half types only.
TEST(Models, KeepTheDigitsOfDoubles) {
  torch::manual_seed(5);
  const auto model = models::AutoModelForCausalLM::from_config(
      models::ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 11,
          "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 2})"));
  model->to(torch::kDouble);
  model->eval();
  const ModelInputs batch{
      .input_ids = torch::tensor({{1, 2, 3, 4}}),
      .labels = torch::tensor({{1, 2, 3, 4}})};
  const auto named = model->named_parameters();
  const auto weight = named["model.layers.0.input_layernorm.weight"];
  // The derivative of the loss, as a central difference: its error is h squared
  // plus the rounding of doubles over h. Losses of float32 would differ by
  // 1e-4.
  for (const bool steps : {false, true}) {
    const models::ForwardOptions options{.output_attentions = steps};
    const auto loss = [&] { return model->forward(batch, options).loss; };
    model->zero_grad();
    loss().backward();
    const double slope = weight.grad()[0].item<double>();
    const torch::NoGradGuard no_grad;
    const double h = 1e-4;
    weight[0] += h;
    const double above = loss().item<double>();
    weight[0] -= 2 * h;
    const double below = loss().item<double>();
    weight[0] += h;
    EXPECT_NEAR((above - below) / (2 * h), slope, 1e-9) << steps;
  }
}

// Every step of an epoch has the same shapes, and each sample appears once.
TEST(PackedForward, TrainsFromALoaderOfPackedBatches) {
  std::vector<ModelInputs> texts;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 30; ++i) {
    lengths.push_back(1 + i % 4);
    texts.push_back(
        {.input_ids = torch::full({lengths.back()}, 1 + i % 10),
         .labels = torch::tensor(i % 2)});
  }
  const PackOptions options{
      .num_tokens = 16, .num_sequences = 10, .max_length = 4};
  DataLoader loader(
      texts,
      {.batch_sampler = std::make_shared<PackedBatchSampler>(
           std::make_shared<RandomSampler>(30),
           lengths,
           PackedBatchOptions{
               .num_tokens = 16, .num_sequences = 10, .max_length = 4})},
      [&](const std::vector<ModelInputs>& samples) {
        return pack(PaddingCollator()(samples), options);
      });
  auto model = small_bert();
  Accelerator accelerator(AcceleratorOptions{.cpu = true});
  optim::AdamW adamw(model->parameters(), {.lr = 0.01});
  auto [net, opt, batches] = accelerator.prepare(model, adamw, loader);
  int64_t num_samples = 0;
  for (auto& batch : batches) {
    EXPECT_EQ(batch.input_ids.sizes(), (std::vector<int64_t>{1, 16}));
    EXPECT_EQ(batch.packed_mask.sizes(), (std::vector<int64_t>{10, 4}));
    num_samples += batch.labels.ne(-100).sum().template item<int64_t>();
    const auto output = net(batch);
    EXPECT_EQ(output.logits.sizes(), (std::vector<int64_t>{10, 2}));
    accelerator.backward(output.loss);
    opt.step();
    opt.zero_grad();
  }
  EXPECT_EQ(num_samples, 30);
}

} // namespace
} // namespace accelerate::testing
