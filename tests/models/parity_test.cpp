// SPDX-License-Identifier: Apache-2.0
// Our models compared with transformers', from the same folders (created by
// oracle.py).
#include <ATen/CPUGeneratorImpl.h>
#include <accelerate/models.h>
#include <accelerate/models/packing.h>
#include <accelerate/safetensors.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;
using models::ModelInputs;
using models::PretrainedModel;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void run_oracle(std::vector<std::string> arguments) {
  std::vector<std::string> command = {
      variable("ACCELERATE_ORACLE_PYTHON"), TEST_MODELS_ORACLE};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto result = run_process(
      command, {{"HF_HUB_OFFLINE", "1"}}, std::chrono::seconds(240));
  if (result.exit_code != 0) {
    throw std::runtime_error("oracle.py failed: " + result.err);
  }
}

/// The folders of all cases, created once.
const fs::path& oracle_folders() {
  static const TempDir folder;
  static const bool is_made = [] {
    run_oracle({"make", folder.path().string()});
    return true;
  }();
  (void)is_made;
  return folder.path();
}

using Tensors = std::map<std::string, at::Tensor>;

/// The tensors of a file whose names begin with `prefix`, which is removed.
Tensors read_tensors(const fs::path& path, const std::string& prefix = "") {
  const safetensors::File file(path);
  Tensors tensors;
  for (const auto& view : file.tensors()) {
    if (view.name.starts_with(prefix)) {
      const auto type =
          view.dtype == safetensors::Dtype::kI64 ? torch::kLong : torch::kFloat;
      auto* data = const_cast<std::byte*>(view.data.data());
      tensors[view.name.substr(prefix.size())] =
          torch::from_blob(data, view.shape, type).clone();
    }
  }
  return tensors;
}

std::shared_ptr<PretrainedModel> load(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const std::string kind = name.substr(name.find('_') + 1);
  std::shared_ptr<PretrainedModel> model;
  if (kind == "base") {
    model = models::AutoModel::from_pretrained(folder);
  } else if (kind == "masked" || kind == "untied") {
    model = models::AutoModelForMaskedLM::from_pretrained(folder);
  } else if (kind == "causal" || kind == "tied") {
    model = models::AutoModelForCausalLM::from_pretrained(folder);
  } else {
    model = models::AutoModelForSequenceClassification::from_pretrained(folder);
  }
  EXPECT_EQ(model->load_report().summary(), "");
  return model;
}

at::Tensor loss_of(const models::ModelOutput& output) {
  return output.loss.defined() ? output.loss
                               : output.last_hidden_state.square().mean();
}

// Sums of some dozen terms of size 1 in float32, in an order that may differ
// between builds of torch.
constexpr double kTolerance = 1e-5;

void expect_close(
    const at::Tensor& ours,
    const at::Tensor& theirs,
    const std::string& what) {
  ASSERT_TRUE(ours.defined()) << what;
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << what;
  const double difference = (ours - theirs).abs().max().item<double>();
  EXPECT_LE(difference, kTolerance) << what;
}

void expect_forward(const fs::path& folder) {
  const auto file = folder / "expected.safetensors";
  const auto model = load(folder);
  const auto output = model->forward(
      read_tensors(file, "inputs."), {.output_hidden_states = true});
  const auto expected = read_tensors(file);
  expect_close(
      output.logits.defined() ? output.logits : output.last_hidden_state,
      expected.at("output"),
      "output");
  if (expected.contains("pooled")) {
    expect_close(output.pooler_output, expected.at("pooled"), "pooled");
  }
  expect_close(loss_of(output), expected.at("loss"), "loss");
  const auto hidden = read_tensors(file, "hidden.");
  ASSERT_EQ(output.hidden_states.size(), hidden.size());
  for (const auto& [index, states] : hidden) {
    expect_close(
        output.hidden_states[std::stoul(index)], states, "hidden." + index);
  }
  const auto again = model->forward(
      read_tensors(file, "inputs."), {.output_attentions = true});
  const auto attentions = read_tensors(file, "attention.");
  ASSERT_EQ(again.attentions.size(), attentions.size());
  // A causal padding token on the right attends to the tokens before it.
  for (const auto& [index, weights] : attentions) {
    expect_close(
        again.attentions[std::stoul(index)], weights, "attention." + index);
  }
}

void expect_training(const fs::path& folder) {
  const auto file = folder / "expected.safetensors";
  const auto model = load(folder);
  const auto inputs = read_tensors(file, "inputs.");
  const auto step = [&] { loss_of(model->forward(inputs)).backward(); };
  step();
  const auto gradients = read_tensors(file, "grad.");
  for (const auto& item : model->named_parameters()) {
    if (gradients.contains(item.key())) {
      expect_close(
          item.value().grad(), gradients.at(item.key()), "grad." + item.key());
    } else {
      EXPECT_FALSE(item.value().grad().defined()) << item.key();
    }
  }
  model->zero_grad();
  // eps as in oracle.py, which says why.
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-3).eps(1e-4));
  for (int i = 0; i < 3; ++i) {
    step();
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto trained = read_tensors(file, "step3.");
  ASSERT_EQ(model->named_parameters().size(), trained.size());
  for (const auto& item : model->named_parameters()) {
    expect_close(item.value(), trained.at(item.key()), "step3." + item.key());
  }
}

ModelInputs inputs_of(const Tensors& tensors) {
  const auto get = [&](const char* name) {
    const auto found = tensors.find(name);
    return found != tensors.end() ? found->second : at::Tensor();
  };
  return {
      .input_ids = get("input_ids"),
      .attention_mask = get("attention_mask"),
      .token_type_ids = get("token_type_ids"),
      .labels = get("labels")};
}

/// Transformers' outputs for the padded batch, from the packed one. Token-wise
/// outputs are compared only for tokens.
void expect_packed(const fs::path& folder, const models::PackOptions& options) {
  const auto file = folder / "expected.safetensors";
  const auto model = load(folder);
  const auto padded = inputs_of(read_tensors(file, "inputs."));
  const auto is_token = padded.attention_mask.ne(0);
  const auto num_sequences = is_token.size(0);
  const auto num_tokens = is_token.sum().item<int64_t>();
  const auto inputs = models::pack(padded, options);
  const auto output = model->forward(inputs, {.output_hidden_states = true});
  const auto expected = read_tensors(file);
  const auto expect_tokens = [&](const at::Tensor& ours,
                                 const at::Tensor& theirs,
                                 const std::string& what) {
    ASSERT_EQ(ours.size(0), 1) << what;
    expect_close(
        ours.select(0, 0).narrow(0, 0, num_tokens),
        theirs.index({is_token}),
        what);
  };
  const auto hidden = read_tensors(file, "hidden.");
  ASSERT_EQ(output.hidden_states.size(), hidden.size());
  for (const auto& [index, states] : hidden) {
    expect_tokens(
        output.hidden_states[std::stoul(index)], states, "hidden." + index);
  }
  if (output.pooler_output.defined()) {
    expect_close(
        output.pooler_output.narrow(0, 0, num_sequences),
        expected.at("pooled"),
        "pooled");
  }
  const auto weights =
      model->forward(inputs, {.output_attentions = true}).attentions;
  for (const auto& [index, theirs] : read_tensors(file, "attention.")) {
    const auto lengths = is_token.sum(1);
    for (int64_t i = 0; i < num_sequences; ++i) {
      const auto length = lengths[i].item<int64_t>();
      const auto part = [&](const at::Tensor& x) {
        return x[i].narrow(1, 0, length).narrow(2, 0, length);
      };
      expect_close(
          part(weights.at(std::stoul(index))), part(theirs), "attention");
    }
  }
  if (!output.loss.defined()) {
    return;
  }
  expect_close(output.loss, expected.at("loss"), "loss");
  if (output.logits.dim() == 3) {
    expect_tokens(output.logits, expected.at("output"), "logits");
  } else {
    expect_close(
        output.logits.narrow(0, 0, num_sequences),
        expected.at("output"),
        "logits");
  }
  output.loss.backward();
  for (const auto& [name, theirs] : read_tensors(file, "grad.")) {
    expect_close(
        model->named_parameters()[name].grad(), theirs, "grad." + name);
  }
}

TEST(ModelReference, TinyBertPredictsAndTrainsAsInTransformers) {
  const auto folder = fs::path(TEST_REFERENCE_DIR) / "models/bert_tiny";
  expect_forward(folder);
  expect_training(folder);
}

class ModelParity : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (variable("ACCELERATE_ORACLE_PYTHON").empty()) {
      GTEST_SKIP() << "ACCELERATE_ORACLE_PYTHON names no Python with "
                      "transformers";
    }
    folder_ = oracle_folders() / GetParam();
  }
  fs::path folder_;
};

TEST_P(ModelParity, PredictsAsTransformersDoes) {
  expect_forward(folder_);
}

TEST_P(ModelParity, HasTheSameGradientsAndThreeStepsOfAdamW) {
  expect_training(folder_);
}

TEST_P(ModelParity, PredictsAndTrainsTheSameWithoutPadding) {
  expect_packed(folder_, {});
  const std::string name = GetParam();
  // Their labels are not classes.
  if (name != "bert_regression" && name != "bert_multi_label") {
    // 19 tokens of 3 sequences; two sequences pad the row, one is empty.
    expect_packed(
        folder_, {.num_tokens = 40, .num_sequences = 6, .max_length = 12});
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    ModelParity,
    ::testing::Values(
        "bert_base",
        "bert_classifier",
        "bert_regression",
        "bert_multi_label",
        "bert_masked",
        "bert_untied",
        "distilbert_base",
        "distilbert_classifier",
        "distilbert_masked",
        "roberta_base",
        "roberta_classifier",
        "roberta_masked",
        "gpt2_base",
        "gpt2_classifier",
        "gpt2_causal",
        "llama_base",
        "llama_classifier",
        "llama_causal",
        "llama_tied"),
    [](const auto& info) { return std::string(info.param); });

class GenerateParity : public ModelParity {};

TEST_P(GenerateParity, ContinuesPaddedPromptsTokenForToken) {
  const auto model = models::AutoModelForCausalLM::from_pretrained(folder_);
  const auto file = folder_ / "expected.safetensors";
  const auto given = read_tensors(file, "prompt.");
  const auto expected = read_tensors(file, "generated.");
  const ModelInputs prompt{
      .input_ids = given.at("input_ids"),
      .attention_mask = given.at("attention_mask")};
  const std::vector<int64_t> none;
  for (const bool use_cache : {true, false}) {
    const auto greedy = model->generate(
        prompt,
        {.max_new_tokens = 16, .eos_token_ids = none, .use_cache = use_cache});
    EXPECT_TRUE(torch::equal(greedy, expected.at("greedy")))
        << greedy << expected.at("greedy");
  }
  const auto stop = expected.at("stop").item<int64_t>();
  const auto stopped = model->generate(
      prompt,
      {.max_new_tokens = 16, .eos_token_ids = std::vector<int64_t>{stop}});
  EXPECT_TRUE(torch::equal(stopped, expected.at("stopped")))
      << stopped << expected.at("stopped");
  // The same numbers from the generator, in the same order.
  const auto drawn = model->generate(
      prompt,
      {.max_new_tokens = 16,
       .do_sample = true,
       .temperature = 0.7,
       .top_k = 20,
       .top_p = 0.9,
       .eos_token_ids = none,
       .generator = at::make_generator<at::CPUGeneratorImpl>(5)});
  EXPECT_TRUE(torch::equal(drawn, expected.at("drawn")))
      << drawn << expected.at("drawn");
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    GenerateParity,
    ::testing::Values("gpt2_causal", "llama_causal", "llama_tied"),
    [](const auto& info) { return std::string(info.param); });

TEST(ModelRoundTrip, TransformersLoadsWhatWeSaved) {
  if (variable("ACCELERATE_ORACLE_PYTHON").empty()) {
    GTEST_SKIP() << "ACCELERATE_ORACLE_PYTHON names no Python with "
                    "transformers";
  }
  const TempDir ours;
  for (const auto& folder : fs::directory_iterator(oracle_folders())) {
    load(folder)->save_pretrained(ours.path() / folder.path().filename());
  }
  EXPECT_NO_THROW(
      run_oracle({"check", ours.path().string(), oracle_folders().string()}));
}

TEST(RealModel, MiniLmEmbedsSentencesAsTransformersDoes) {
  const auto real = variable("ACCELERATE_REAL_MODEL");
  if (variable("ACCELERATE_ORACLE_PYTHON").empty() || real.empty()) {
    GTEST_SKIP() << "ACCELERATE_REAL_MODEL and ACCELERATE_ORACLE_PYTHON are "
                    "not both set";
  }
  const TempDir folder;
  const auto file = folder.path() / "expected.safetensors";
  run_oracle({"real", real, file.string()});
  const auto inputs = read_tensors(file, "inputs.");
  const torch::NoGradGuard no_grad;
  const auto model = models::AutoModel::from_pretrained(real);
  EXPECT_EQ(model->load_report().summary(), "");
  const auto hidden = model->forward(inputs).last_hidden_state;
  const auto mask = inputs.at("attention_mask").unsqueeze(-1).to(torch::kFloat);
  const auto ours = (hidden * mask).sum(1) / mask.sum(1);
  const auto theirs = read_tensors(file).at("embeddings");
  expect_close(ours, theirs, "embeddings");
  const auto neighbours = [](const at::Tensor& embeddings) {
    const auto unit = torch::nn::functional::normalize(embeddings);
    return torch::matmul(unit, unit.t()).argsort(1, /*descending=*/true);
  };
  EXPECT_TRUE(torch::equal(neighbours(ours), neighbours(theirs)));
  // Sentences come in pairs of one topic: the most similar sentence is the
  // partner.
  for (int64_t i = 0; i < ours.size(0); ++i) {
    EXPECT_EQ(neighbours(ours)[i][1].item<int64_t>(), i ^ 1) << i;
  }
}

} // namespace
} // namespace accelerate::testing
