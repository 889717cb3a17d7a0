// SPDX-License-Identifier: Apache-2.0
// Folders, valid and invalid; initial weights; batches of all kinds;
// generation.
#include <ATen/CPUGeneratorImpl.h>
#include <accelerate/accelerate.h>
#include <accelerate/files/safetensors_index.h>
#include <accelerate/models.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>

#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;
using models::AutoModel;
using models::AutoModelForCausalLM;
using models::AutoModelForMaskedLM;
using models::AutoModelForSequenceClassification;
using models::ModelConfig;
using models::ModelInputs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const fs::path kTinyBert = fs::path(TEST_REFERENCE_DIR) / "models/bert_tiny";

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "nothing was thrown";
}

/// A copy of the tiny folder (two classes, 31 tokens, 20 positions) to be
/// damaged.
class TinyFolder {
 public:
  TinyFolder() {
    for (const auto* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(kTinyBert / name, path() / name);
    }
  }
  const fs::path& path() const { return folder_.path(); }

  void replace_in_config(const std::string& from, const std::string& to) {
    std::string text = read_file(path() / "config.json");
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    folder_.write("config.json", text.replace(at, from.size(), to));
  }
  /// Writes the weights again under other names.
  void rename_weights(const std::function<std::string(std::string)>& rename) {
    const safetensors::File file(path() / "model.safetensors");
    auto tensors = file.tensors();
    for (auto& tensor : tensors) {
      tensor.name = rename(tensor.name);
    }
    safetensors::write_file(path() / "model.safetensors", tensors);
  }
  std::string message() const {
    return message_of(
        [&] { AutoModelForSequenceClassification::from_pretrained(path()); });
  }

 private:
  TempDir folder_;
};

ModelInputs tiny_batch() {
  return {
      .input_ids = torch::tensor({{5, 6, 7, 8}, {9, 10, 0, 0}}),
      .attention_mask = torch::tensor({{1, 1, 1, 1}, {1, 1, 0, 0}}),
      .labels = torch::tensor({0, 1})};
}

bool same_parameters(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto others = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    if (!torch::equal(item.value(), others[item.key()])) {
      return false;
    }
  }
  return a.named_parameters().size() == others.size();
}

TEST(BadFolder, EachCauseHasASentenceThatNamesTheFile) {
  EXPECT_THAT(
      message_of([] { AutoModel::from_pretrained("/no/such/model"); }),
      AllOf(HasSubstr("/no/such/model is not a folder"), HasSubstr("Pass")));
  const TempDir empty;
  EXPECT_THAT(
      message_of([&] { AutoModel::from_pretrained(empty.path()); }),
      HasSubstr(empty.path().string() + " has no readable config.json"));
  empty.write("config.json", "{\"model_type\":");
  EXPECT_THAT(
      message_of([&] { AutoModel::from_pretrained(empty.path()); }),
      HasSubstr("config.json: The file is not JSON. Download it again"));
  empty.write("config.json", "{\"hidden_size\": 8}");
  EXPECT_THAT(
      message_of([&] { AutoModel::from_pretrained(empty.path()); }),
      HasSubstr("config.json: 'model_type' is missing"));
  empty.write("config.json", "{\"model_type\": \"t5\"}");
  EXPECT_THAT(
      message_of([&] { AutoModel::from_pretrained(empty.path()); }),
      AllOf(
          HasSubstr("config.json: The 'model_type' 't5' is not supported"),
          HasSubstr("bert, distilbert, gpt2, llama, roberta")));
  empty.write("config.json", "{\"model_type\": \"gpt2\"}");
  EXPECT_THAT(
      message_of([&] { AutoModelForMaskedLM::from_pretrained(empty.path()); }),
      HasSubstr("gpt2 has no AutoModelForMaskedLM. It has AutoModel, "
                "AutoModelForSequenceClassification, AutoModelForCausalLM"));
}

TEST(BadFolder, InvalidValuesAreRejected) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"\"hidden_size\": 8",
       "\"hidden_size\": \"8\"",
       "'hidden_size' is \"8\", expected an integer above 0"},
      {"\"num_attention_heads\": 2",
       "\"num_attention_heads\": 3",
       "The hidden size is 8, but it must be a multiple of the number of "
       "attention heads, 3"},
      {"\"hidden_act\": \"gelu\"",
       "\"hidden_act\": \"snake\"",
       "'hidden_act' is 'snake', which is not supported. Supported values: "
       "gelu,"},
      {"\"is_decoder\": false", "\"is_decoder\": true", "'is_decoder' is true"},
      {"\"is_decoder\": false",
       "\"problem_type\": \"guess\"",
       "'problem_type' is 'guess', expected regression,"},
      {"\"is_decoder\": false",
       "\"position_embedding_type\": \"relative_key\"",
       "'position_embedding_type' is 'relative_key'"},
      {"\"dtype\": \"float32\"", "\"dtype\": \"int8\"", "'dtype' is 'int8'"},
  };
  for (const auto& [from, to, expected] : cases) {
    TinyFolder folder;
    folder.replace_in_config(from, to);
    EXPECT_THAT(
        folder.message(), AllOf(HasSubstr("config.json"), HasSubstr(expected)));
  }
}

TEST(BadFolder, WeightsThatAreMissingCutOrOfAnotherKindAreNamed) {
  const TinyFolder cut;
  fs::resize_file(cut.path() / "model.safetensors", 3000);
  EXPECT_THAT(cut.message(), HasSubstr("model.safetensors"));

  const TinyFolder none;
  fs::remove(none.path() / "model.safetensors");
  EXPECT_THAT(none.message(), HasSubstr(none.path().string()));
  std::ofstream(none.path() / "pytorch_model.bin") << "PK";
  EXPECT_THAT(
      none.message(),
      AllOf(
          HasSubstr("has pytorch_model.bin but no model.safetensors"),
          HasSubstr("Load the model with transformers and save it again")));

  const TempDir sharded;
  AutoModel::from_pretrained(kTinyBert, {.warn = false})
      ->save_pretrained(sharded.path(), {.max_shard_bytes = 3000});
  const auto shard = "model-00002-of-00002.safetensors";
  ASSERT_TRUE(fs::remove(sharded.path() / shard));
  EXPECT_THAT(
      message_of([&] { AutoModel::from_pretrained(sharded.path()); }),
      HasSubstr(shard));
}

TEST(BadFolder, AHeadForOtherClassesIsRejectedOrReinitialised) {
  EXPECT_THAT(
      message_of([] {
        AutoModelForSequenceClassification::from_pretrained(
            kTinyBert, {.num_labels = 5});
      }),
      AllOf(
          HasSubstr("model.safetensors: classifier.bias has shape [2] in the "
                    "file but [5] in the model"),
          HasSubstr("Set ignore_mismatched_sizes")));
  const auto model = AutoModelForSequenceClassification::from_pretrained(
      kTinyBert,
      {.num_labels = 5, .ignore_mismatched_sizes = true, .warn = false});
  EXPECT_EQ(model->forward(tiny_batch()).logits.size(1), 5);
  ASSERT_EQ(model->load_report().mismatched.size(), 2);
  EXPECT_EQ(model->load_report().mismatched[1].name, "classifier.weight");
  EXPECT_THAT(
      message_of([] {
        AutoModelForSequenceClassification::from_pretrained(
            kTinyBert, {.num_labels = 2, .labels = {"a", "b", "c"}});
      }),
      HasSubstr("num_labels is 2, but there are 3 labels"));
}

TEST(BadBatch, ErrorsNameEachCause) {
  const auto model =
      AutoModelForSequenceClassification::from_pretrained(kTinyBert);
  const auto message = [&](const std::function<void(ModelInputs&)>& spoil) {
    auto batch = tiny_batch();
    spoil(batch);
    return message_of([&] { model->forward(batch); });
  };
  EXPECT_THAT(
      message([](auto& b) {
        b.labels = torch::tensor({0, 2});
      }),
      HasSubstr("Label 2 is out of range, expected 0 to 1"));
  EXPECT_THAT(
      message([](auto& b) {
        b.labels = torch::tensor({0, -1});
      }),
      HasSubstr("Label -1 is out of range"));
  EXPECT_THAT(
      message([](auto& b) {
        b.labels = torch::tensor({0, 1, 1});
      }),
      HasSubstr(
          "labels has shape [3], expected one label for each of the 2 rows"));
  EXPECT_THAT(
      message([](auto& b) {
        b.labels = torch::tensor({0.5, 1.0});
      }),
      HasSubstr("labels has shape [2], but the logits have shape [2, 2]"));
  EXPECT_THAT(
      message([](auto& b) { b.input_ids[0][0] = 31; }),
      HasSubstr("input_ids range from 0 to 31, expected 0 to 30. Use the "
                "tokenizer of this model"));
  EXPECT_THAT(
      message([](auto& b) { b.input_ids = at::Tensor(); }),
      HasSubstr("input_ids is missing"));
  EXPECT_THAT(
      message([](auto& b) {
        b.attention_mask = torch::ones({2, 3});
      }),
      HasSubstr("attention_mask has shape [2, 3], expected [2, 4]"));
  EXPECT_THAT(
      message([](auto& b) {
        b = {.input_ids = torch::ones({1, 21}, torch::kLong)};
      }),
      HasSubstr("21 tokens, but the model has 20 positions. Truncate"));
  const std::map<std::string, at::Tensor> named = {
      {"input_ids", tiny_batch().input_ids}, {"label", at::Tensor()}};
  EXPECT_THAT(
      message_of([&] { model->forward(named); }),
      HasSubstr("The batch has an unknown field 'label'"));
  EXPECT_EQ(
      message([](auto& b) {
        b.labels = torch::tensor({0, -100});
      }),
      "nothing was thrown");
}

TEST(Folder, NamesOfHeadsAndOldFilesAreMatchedAsTransformersMatchesThem) {
  TinyFolder folder;
  const auto original =
      AutoModelForSequenceClassification::from_pretrained(folder.path());
  EXPECT_EQ(original->load_report().summary(), "");
  EXPECT_FALSE(original->is_training());

  // A model with a head read without it.
  const auto base = AutoModel::from_pretrained(folder.path(), {.warn = false});
  EXPECT_THAT(base->load_report().missing, IsEmpty());
  EXPECT_THAT(
      base->load_report().unexpected,
      ElementsAre("classifier.bias", "classifier.weight"));

  // The reverse, from names of the time before transformers.
  folder.rename_weights([](std::string name) {
    if (name.starts_with("bert.")) {
      name = name.substr(5);
    }
    if (const auto at = name.find("LayerNorm."); at != std::string::npos) {
      name = name.substr(0, at + 10) +
             (name.ends_with("weight") ? "gamma" : "beta");
    }
    return name.starts_with("classifier") ? "cls." + name : name;
  });
  ::testing::internal::CaptureStderr();
  const auto old =
      AutoModelForSequenceClassification::from_pretrained(folder.path());
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(
          HasSubstr(
              "[from_pretrained] BertForSequenceClassification from " +
              folder.path().string()),
          HasSubstr(
              "newly initialized, because the files do not contain them (train "
              "them before use): classifier.bias, classifier.weight"),
          HasSubstr("in the files but not in the model: cls.classifier.bias")));
  EXPECT_THAT(
      old->load_report().missing,
      ElementsAre("classifier.bias", "classifier.weight"));
  const auto parameters = old->named_parameters();
  for (const auto& item : original->named_parameters()) {
    if (item.key().starts_with("bert.")) {
      EXPECT_TRUE(torch::equal(item.value(), parameters[item.key()]));
    }
  }
}

TEST(Folder, AWeightThatIsUsedTwiceMayHaveItsOtherName) {
  const TempDir folder;
  const auto config = ModelConfig::parse(
      R"({"model_type": "gpt2", "vocab_size": 11, "n_embd": 4, "n_head": 2,
          "n_layer": 1, "n_positions": 8})");
  const auto model = AutoModelForCausalLM::from_config(config);
  model->save_pretrained(folder.path());
  const safetensors::File file(folder.path() / "model.safetensors");
  EXPECT_FALSE(file.contains("lm_head.weight"));
  auto tensors = file.tensors();
  for (auto& tensor : tensors) {
    if (tensor.name == "transformer.wte.weight") {
      tensor.name = "lm_head.weight";
    }
  }
  safetensors::write_file(folder.path() / "model.safetensors", tensors);
  const auto read = AutoModelForCausalLM::from_pretrained(folder.path());
  EXPECT_EQ(read->load_report().summary(), "");
  EXPECT_TRUE(same_parameters(*read, *model));
}

TEST(Folder, ShardsDtypesAndLabelsSurviveTheDisk) {
  const TempDir folder;
  const auto model = AutoModelForSequenceClassification::from_pretrained(
      kTinyBert, {.labels = {"bad", "good"}, .dtype = at::kBFloat16});
  EXPECT_EQ(model->parameters()[0].scalar_type(), at::kBFloat16);
  model->save_pretrained(folder.path(), {.max_shard_bytes = 2000});
  EXPECT_TRUE(fs::exists(folder.path() / "model.safetensors.index.json"));
  const auto read =
      AutoModelForSequenceClassification::from_pretrained(folder.path());
  EXPECT_EQ(read->parameters()[0].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(same_parameters(*read, *model));
  EXPECT_THAT(read->config().labels(), ElementsAre("bad", "good"));
  EXPECT_EQ(read->config().text("dtype", ""), "bfloat16");
  // Eight bits of mantissa through one block.
  const auto exact =
      AutoModelForSequenceClassification::from_pretrained(kTinyBert);
  EXPECT_TRUE(torch::allclose(
      read->forward(tiny_batch()).logits.to(torch::kFloat),
      exact->forward(tiny_batch()).logits,
      /*rtol=*/0.05,
      /*atol=*/0.05));
}

TEST(NewModel, WeightsAreDrawnByTheRulesOfTheConfiguration) {
  torch::manual_seed(0);
  const auto bert = AutoModelForSequenceClassification::from_config(
      ModelConfig::parse(
          R"({"model_type": "bert", "vocab_size": 500, "hidden_size": 64,
              "num_hidden_layers": 1, "num_attention_heads": 4,
              "intermediate_size": 128, "initializer_range": 0.5})"),
      {.num_labels = 4});
  EXPECT_TRUE(bert->is_training());
  const auto values = bert->named_parameters();
  const auto spread = [](const at::Tensor& t) {
    return t.std().item<double>();
  };
  // 32,000 and 4,096 elements: their deviation is within 2 and 5 percent.
  const auto words = values["bert.embeddings.word_embeddings.weight"];
  EXPECT_NEAR(spread(words), 0.5, 0.01);
  EXPECT_NEAR(
      spread(values["bert.encoder.layer.0.attention.self.query.weight"]),
      0.5,
      0.025);
  EXPECT_EQ(words[0].abs().max().item<float>(), 0);
  EXPECT_EQ(values["classifier.bias"].abs().max().item<float>(), 0);
  const auto norm = values["bert.embeddings.LayerNorm.weight"];
  EXPECT_TRUE(torch::equal(norm, torch::ones(64)));

  const auto gpt2 = AutoModel::from_config(ModelConfig::parse(
      R"({"model_type": "gpt2", "vocab_size": 50, "n_embd": 64, "n_head": 4,
          "n_layer": 8, "initializer_range": 0.4})"));
  const auto others = gpt2->named_parameters();
  EXPECT_NEAR(spread(others["h.0.attn.c_attn.weight"]), 0.4, 0.02);
  EXPECT_NEAR(spread(others["h.0.attn.c_proj.weight"]), 0.1, 0.005);
  EXPECT_NEAR(spread(others["h.7.mlp.c_proj.weight"]), 0.1, 0.005);
}

TEST(NewModel, DropoutWorksInTrainingOnly) {
  torch::manual_seed(0);
  const auto model =
      AutoModelForSequenceClassification::from_pretrained(kTinyBert);
  const auto logits = [&] { return model->forward(tiny_batch()).logits; };
  EXPECT_TRUE(torch::equal(logits(), logits()));
  model->train();
  EXPECT_FALSE(torch::equal(logits(), logits()));
}

struct OwnBatch {
  at::Tensor input_ids, attention_mask, labels;
};
inline auto tensor_fields(OwnBatch& b) {
  return std::tie(b.input_ids, b.attention_mask, b.labels);
}

TEST(Batch, StructsAndMapsAreTakenByNames) {
  const auto model =
      AutoModelForSequenceClassification::from_pretrained(kTinyBert);
  const auto inputs = tiny_batch();
  const auto expected = model->forward(inputs);
  const OwnBatch own{inputs.input_ids, inputs.attention_mask, inputs.labels};
  const std::map<std::string, at::Tensor> named = {
      {"input_ids", inputs.input_ids},
      {"attention_mask", inputs.attention_mask},
      {"labels", inputs.labels}};
  EXPECT_TRUE(torch::equal(model->forward(own).loss, expected.loss));
  EXPECT_TRUE(torch::equal(model->forward(named).loss, expected.loss));
}

TEST(Batch, APreparedLoopTrains) {
  struct Samples {
    size_t size() const { return 8; }
    ModelInputs get(int64_t i) const {
      // The class is the first token.
      return {
          .input_ids = torch::tensor({4 + i % 2, int64_t{7}, int64_t{8}}),
          .attention_mask = torch::ones({3}, torch::kLong),
          .labels = torch::tensor(i % 2)};
    }
  };
  torch::manual_seed(0);
  Accelerator accelerator({.cpu = true});
  auto model = AutoModelForSequenceClassification::from_pretrained(
      kTinyBert, {.num_labels = 2});
  torch::optim::AdamW adamw(model->parameters(), 1e-2);
  DataLoader data(Samples{}, {.batch_size = 4, .shuffle = true});
  auto [loader, net, optimizer] = accelerator.prepare(data, model, adamw);
  net->train();
  float loss = 0;
  for (int epoch = 0; epoch < 30; ++epoch) {
    for (auto& batch : loader) {
      auto outputs = net(batch);
      accelerator.backward(outputs.loss);
      optimizer.step();
      optimizer.zero_grad();
      loss = outputs.loss.item<float>();
    }
  }
  // Random predictions cost 0.69.
  EXPECT_LT(loss, 0.2);
}

TEST(GradientCheckpointing, GivesTheSameGradientsBitForBit) {
  auto model = AutoModelForSequenceClassification::from_pretrained(
      kTinyBert, {.num_labels = 2});
  model->train();
  const ModelInputs inputs{
      .input_ids = torch::tensor({{4, 7, 8}, {5, 6, 0}}),
      .attention_mask = torch::tensor({{1, 1, 1}, {1, 1, 0}}),
      .labels = torch::tensor({0, 1})};
  const auto gradients = [&] {
    torch::manual_seed(5); // Dropout is on.
    model->zero_grad();
    model->forward(inputs).loss.backward();
    std::vector<at::Tensor> all;
    for (const auto& parameter : model->parameters()) {
      all.push_back(parameter.grad().clone());
    }
    return all;
  };
  const auto plain = gradients();
  model->gradient_checkpointing_enable();
  const auto checkpointed = gradients();
  ASSERT_EQ(plain.size(), checkpointed.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(torch::equal(plain[i], checkpointed[i])) << i;
  }
}

std::shared_ptr<models::CausalLanguageModel> small_gpt2() {
  torch::manual_seed(1);
  auto model = AutoModelForCausalLM::from_config(ModelConfig::parse(
      R"({"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_head": 2,
          "n_layer": 2, "n_positions": 24, "initializer_range": 0.3,
          "eos_token_id": [38, 39], "pad_token_id": 0})"));
  model->eval();
  return model;
}

TEST(Generate, OptionsOutOfRangeAreRejected) {
  const auto model = small_gpt2();
  const auto prompt = torch::tensor({{5, 6, 7}});
  const auto message = [&](const models::GenerateOptions& options) {
    return message_of([&] { model->generate(prompt, options); });
  };
  EXPECT_THAT(message({.max_new_tokens = 0}), HasSubstr("max_new_tokens is 0"));
  EXPECT_THAT(
      message({.do_sample = true, .temperature = 0}),
      HasSubstr("temperature is 0, expected a number above 0"));
  EXPECT_THAT(
      message({.do_sample = true, .top_k = -1}), HasSubstr("top_k is -1"));
  EXPECT_THAT(
      message({.do_sample = true, .top_p = 1.5}), HasSubstr("top_p is 1.5"));
  EXPECT_THAT(
      message({.max_new_tokens = 22}),
      HasSubstr("3 tokens and max_new_tokens is 22, but the model has 24"));
  const ModelInputs padded{
      .input_ids = torch::tensor({{5, 6, 7}, {5, 6, 0}}),
      .attention_mask = torch::tensor({{1, 1, 1}, {1, 1, 0}})};
  EXPECT_THAT(
      message_of([&] { model->generate(padded); }),
      HasSubstr("A prompt ends with padding"));
  EXPECT_THAT(
      message_of([&] { model->generate(at::Tensor()); }),
      HasSubstr("input_ids is missing or empty"));
}

TEST(Generate, PaddingOnTheLeftChangesNothing) {
  const auto model = small_gpt2();
  const std::vector<int64_t> none;
  const models::GenerateOptions options{
      .max_new_tokens = 10, .eos_token_ids = none};
  const auto alone = model->generate(torch::tensor({{9, 12}}), options);
  // The mask is derived from the padding token.
  const auto both =
      model->generate(torch::tensor({{5, 6, 7, 8}, {0, 0, 9, 12}}), options);
  EXPECT_TRUE(torch::equal(both[1].slice(0, 2), alone[0]));
}

TEST(Generate, SamplingUsesTheGivenGenerator) {
  const auto model = small_gpt2();
  const auto prompt = torch::tensor({{5, 6, 7}});
  const auto drawn = [&](uint64_t seed) {
    return model->generate(
        prompt,
        {.do_sample = true,
         .temperature = 2.0,
         .eos_token_ids = std::vector<int64_t>{},
         .generator = at::make_generator<at::CPUGeneratorImpl>(seed)});
  };
  EXPECT_TRUE(torch::equal(drawn(1), drawn(1)));
  EXPECT_FALSE(torch::equal(drawn(1), drawn(2)));
  // Only the most likely token is left.
  EXPECT_TRUE(torch::equal(
      model->generate(prompt, {.do_sample = true, .top_k = 1}),
      model->generate(prompt)));
}

} // namespace
} // namespace accelerate::testing
