// SPDX-License-Identifier: Apache-2.0
// Models read from Hugging Face folders (library accelerate_models).
//
//     using namespace accelerate::models;
//     auto model = AutoModelForSequenceClassification::from_pretrained(
//         "minilm", {.num_labels = 2});
//     auto outputs = model->forward(batch);
//     outputs.loss.backward();
//     model->save_pretrained("finetuned"); // transformers reads it
//
// Architectures (`model_type`): bert, distilbert, gpt2, llama, roberta;
// docs/adding.md shows how to add one. `named_parameters()` has the names of
// transformers' `state_dict()`; a weight that is used twice is there once.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/model_config.h"
#include "accelerate/model_inputs.h"

namespace accelerate::models {

struct PretrainedOptions {
  /// Classes of a classifier; the configuration's where not given.
  std::optional<int64_t> num_labels = {};
  /// Names of the classes, saved with the model. Says `num_labels` too.
  std::vector<std::string> labels = {};
  /// "regression", "single_label_classification" or
  /// "multi_label_classification". Where neither this nor the configuration
  /// says: one label is a regression, labels that are whole numbers are
  /// classes, others are several labels at once.
  std::string problem_type = {};
  /// Of the weights: float32, bfloat16 or float16. As the configuration says
  /// where not given, else as the first weight in the file, else float32.
  std::optional<at::ScalarType> dtype = {};
  /// Weights of another shape (such as a head for other classes) are drawn
  /// anew instead of refused.
  bool ignore_mismatched_sizes = false;
  /// One line on standard error where weights are missing or not used.
  bool warn = true;
};

/// How the names in the files and the parameters of the model met.
struct ACCELERATE_API LoadReport {
  struct Mismatch {
    std::string name = {};
    std::vector<int64_t> in_file = {};
    std::vector<int64_t> in_model = {};
  };
  /// Parameters that no file has: drawn anew. A new head is among them.
  std::vector<std::string> missing = {};
  /// Tensors in the files that the model has no place for.
  std::vector<std::string> unexpected = {};
  /// Drawn anew since `ignore_mismatched_sizes` was set.
  std::vector<Mismatch> mismatched = {};
  /// The warning; empty where everything fits.
  std::string summary() const;
};

struct SavePretrainedOptions {
  /// Weights above it are split into several files and an index.
  std::uint64_t max_shard_bytes = 50'000'000'000;
};

/// A struct of a user's own whose members are named as those of `ModelInputs`.
template <class B>
concept BatchStruct =
    !std::same_as<B, ModelInputs> && requires(const B& batch) {
  { batch.input_ids } -> std::convertible_to<at::Tensor>;
};

/// A model with weights. `from_pretrained` gives it in evaluation mode, as
/// transformers does; call `train()` before training.
class ACCELERATE_API PretrainedModel : public torch::nn::Module {
 public:
  /// Throws `UsageError` for shapes that do not fit, for more tokens than the
  /// model has positions and, on the CPU, for token ids and labels outside of
  /// the range (a GPU is not waited for: there CUDA's own check ends the
  /// program).
  ModelOutput forward(
      const ModelInputs& inputs,
      const ForwardOptions& options = {});
  /// By the names of the members of `ModelInputs`; throws `UsageError` for
  /// others.
  ModelOutput forward(
      const std::map<std::string, at::Tensor>& batch,
      const ForwardOptions& options = {});
  template <BatchStruct Batch>
  ModelOutput forward(const Batch& batch, const ForwardOptions& options = {}) {
    ModelInputs inputs{.input_ids = batch.input_ids};
    if constexpr (requires { batch.attention_mask; }) {
      inputs.attention_mask = batch.attention_mask;
    }
    if constexpr (requires { batch.token_type_ids; }) {
      inputs.token_type_ids = batch.token_type_ids;
    }
    if constexpr (requires { batch.position_ids; }) {
      inputs.position_ids = batch.position_ids;
    }
    if constexpr (requires { batch.packed_mask; }) {
      inputs.packed_mask = batch.packed_mask;
    }
    if constexpr (requires { batch.labels; }) {
      inputs.labels = batch.labels;
    }
    return forward(inputs, options);
  }

  /// Keep only the inputs of blocks while training and compute the rest again
  /// in backward (`recompute.h`): less memory for a second forward. Off at
  /// first.
  void gradient_checkpointing_enable(bool enabled = true);

  const ModelConfig& config() const { return config_; }
  /// transformers' name of the class, such as "BertForSequenceClassification".
  const std::string& class_name() const { return class_name_; }
  /// Empty for a model that was made by `from_config`.
  const LoadReport& load_report() const { return report_; }

  /// Writes `config.json` and the weights (`model.safetensors`, or shards and
  /// an index); transformers loads the folder. Call it on one process. Where
  /// ranks hold parts of the parameters (`ShardStage::kParameters`), call it on
  /// all of them: rank 0 gets the whole and writes. Throws `SystemError`.
  void save_pretrained(
      const std::filesystem::path& folder,
      const SavePretrainedOptions& options = {}) const;
  /// The text of `config.json` beside weights of this type; without a type, as
  /// the configuration says. `Accelerator::save_model` writes it too.
  std::string saved_config(std::optional<at::ScalarType> dtype) const;

 protected:
  explicit PretrainedModel(ModelConfig config);
  bool recomputes_activations() const { return recomputes_activations_; }

 private:
  friend struct ModelLoader;
  virtual ModelOutput run(
      const ModelInputs& inputs,
      const ForwardOptions& options) = 0;

  ModelConfig config_;
  std::string class_name_;
  LoadReport report_;
  bool recomputes_activations_ = false;
};

struct GenerateOptions {
  /// Tokens to add at most.
  int64_t max_new_tokens = 20;
  /// Draw tokens; otherwise the likeliest is taken, and the next three fields
  /// play no part.
  bool do_sample = false;
  /// Above 0. Below 1 the likely tokens become likelier.
  double temperature = 1.0;
  /// Only the k likeliest tokens; 0 for all of them.
  int64_t top_k = 50;
  /// Only the likeliest tokens that together have this probability.
  double top_p = 1.0;
  /// Tokens that end a sequence; those of the folder (`generation_config.json`,
  /// else `config.json`) where not given, none where empty.
  std::optional<std::vector<int64_t>> eos_token_ids = {};
  /// What follows the end of a sequence in a batch. The folder's where not
  /// given, else the first of `eos_token_ids`.
  std::optional<int64_t> pad_token_id = {};
  /// Torch's default generator where not given.
  std::optional<at::Generator> generator = {};
  /// Keeps keys and values of earlier tokens instead of computing them again.
  bool use_cache = true;
};

/// A model that continues texts.
class ACCELERATE_API CausalLanguageModel : public PretrainedModel {
 public:
  /// The prompt (B x T) with up to `max_new_tokens` tokens behind it, as
  /// `generate` of transformers makes them; sequences that ended earlier are
  /// filled with `pad_token_id`. Prompts of different lengths are padded on the
  /// left, with an `attention_mask` (worked out from the padding token where it
  /// is not given and differs from the end tokens). Works in the model's mode:
  /// call `eval()` first. Throws `UsageError` for padding on the right, for
  /// options outside of their ranges and for more tokens than positions.
  ///
  /// Where ranks hold parts of the parameters (`ShardStage::kParameters`), call
  /// it on all of them. Prompts, options and numbers of tokens may differ: a
  /// rank that is done computes with the others until all are.
  at::Tensor generate(
      const ModelInputs& prompt,
      const GenerateOptions& options = {});
  at::Tensor generate(
      const at::Tensor& input_ids,
      const GenerateOptions& options = {}) {
    return generate(ModelInputs{.input_ids = input_ids}, options);
  }

 protected:
  using PretrainedModel::PretrainedModel;

 private:
  friend struct ModelLoader;
  friend class Generation;
  /// Logits (B x V) of the token after `inputs`; `cache` may be null.
  virtual at::Tensor next_logits(
      const ModelInputs& inputs,
      class KeyValueCache* cache) = 0;
  virtual int64_t num_layers() const = 0;
  /// None where any number of tokens will do.
  virtual std::optional<int64_t> max_tokens() const = 0;

  /// The text of `generation_config.json`; empty where there is none.
  std::string generation_config_;
};

/// The bare model: hidden states, no head.
class ACCELERATE_API AutoModel {
 public:
  /// Reads a folder with `config.json` and `model.safetensors` (or shards and
  /// `model.safetensors.index.json`). Names of old files and of models with
  /// and without a head are matched as in transformers; see `load_report`.
  /// Throws `ConfigError` for a folder that is incomplete or does not fit,
  /// naming the file and what to do, and what `safetensors::Checkpoint` throws.
  static std::shared_ptr<PretrainedModel> from_pretrained(
      const std::filesystem::path& folder,
      const PretrainedOptions& options = {});
  /// New weights, drawn by the configuration's rules with torch's default
  /// generator. In training mode.
  static std::shared_ptr<PretrainedModel> from_config(
      const ModelConfig& config,
      const PretrainedOptions& options = {});
};

class ACCELERATE_API AutoModelForSequenceClassification {
 public:
  static std::shared_ptr<PretrainedModel> from_pretrained(
      const std::filesystem::path& folder,
      const PretrainedOptions& options = {});
  static std::shared_ptr<PretrainedModel> from_config(
      const ModelConfig& config,
      const PretrainedOptions& options = {});
};

class ACCELERATE_API AutoModelForMaskedLM {
 public:
  static std::shared_ptr<PretrainedModel> from_pretrained(
      const std::filesystem::path& folder,
      const PretrainedOptions& options = {});
  static std::shared_ptr<PretrainedModel> from_config(
      const ModelConfig& config,
      const PretrainedOptions& options = {});
};

class ACCELERATE_API AutoModelForCausalLM {
 public:
  static std::shared_ptr<CausalLanguageModel> from_pretrained(
      const std::filesystem::path& folder,
      const PretrainedOptions& options = {});
  static std::shared_ptr<CausalLanguageModel> from_config(
      const ModelConfig& config,
      const PretrainedOptions& options = {});
};

} // namespace accelerate::models
