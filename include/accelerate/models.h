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
// transformers' `state_dict()`; tied weights appear once.
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

#include "accelerate/distributed/tensor_plan.h"
#include "accelerate/export.h"
#include "accelerate/models/model_config.h"
#include "accelerate/models/model_inputs.h"

namespace accelerate::models {

struct PretrainedOptions {
  /// Number of classes of a classifier; default: from the configuration.
  std::optional<int64_t> num_labels = {};
  /// Class names, saved with the model. Also sets `num_labels`.
  std::vector<std::string> labels = {};
  /// "regression", "single_label_classification" or
  /// "multi_label_classification". By default from the configuration, else from
  /// the labels: a single label means regression, integer labels are classes,
  /// others are multi-label.
  std::string problem_type = {};
  /// Dtype of the weights: float32, bfloat16 or float16. Default: that of the
  /// configuration, else that of the first weight in the file, else float32.
  std::optional<at::ScalarType> dtype = {};
  /// Reinitialise weights whose shape differs (such as a head for different
  /// classes) instead of failing.
  bool ignore_mismatched_sizes = false;
  /// Print one line on stderr if weights are missing or unused.
  bool warn = true;
};

/// How the names in the files matched the model's parameters.
struct ACCELERATE_API LoadReport {
  struct Mismatch {
    std::string name = {};
    std::vector<int64_t> in_file = {};
    std::vector<int64_t> in_model = {};
  };
  /// Parameters that are in no file, such as those of a new head. They are
  /// initialised.
  std::vector<std::string> missing = {};
  /// Tensors in the files without a counterpart in the model.
  std::vector<std::string> unexpected = {};
  /// Initialised because `ignore_mismatched_sizes` was set.
  std::vector<Mismatch> mismatched = {};
  /// The warning; empty if everything matched.
  std::string summary() const;
};

struct SavePretrainedOptions {
  /// Larger weights are split into several files with an index.
  std::uint64_t max_shard_bytes = 50'000'000'000;
};

/// A custom struct whose members have the names of those of `ModelInputs`.
template <class B>
concept BatchStruct =
    !std::same_as<B, ModelInputs> && requires(const B& batch) {
  { batch.input_ids } -> std::convertible_to<at::Tensor>;
};

/// A model with weights. `from_pretrained` returns it in evaluation mode, as
/// transformers does; call `train()` before training.
class ACCELERATE_API PretrainedModel : public torch::nn::Module,
                                       public HasTensorPlan {
 public:
  /// Throws `UsageError` for shapes that do not match, for more tokens than the
  /// model has positions and, on the CPU, for token ids and labels out of range
  /// (on a GPU, a device-side assertion of CUDA aborts the program).
  ModelOutput forward(
      const ModelInputs& inputs,
      const ForwardOptions& options = {});
  /// Takes inputs by the names of the members of `ModelInputs`; throws
  /// `UsageError` for other names.
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

  /// Activation checkpointing: keep only the inputs of blocks in training and
  /// recompute the rest in backward (`recompute.h`), which saves memory and
  /// costs a second forward. Off by default.
  void gradient_checkpointing_enable(bool enabled = true);

  /// How tensor parallelism divides the model (docs/guide_parallelism.md).
  /// Empty if the architecture has no plan.
  TensorPlan tensor_plan() const override { return {}; }

  const ModelConfig& config() const { return config_; }
  /// The class name in transformers, such as "BertForSequenceClassification".
  const std::string& class_name() const { return class_name_; }
  /// How the files matched; empty for a model created by `from_config`.
  const LoadReport& load_report() const { return report_; }

  /// Writes `config.json` and the weights (`model.safetensors`, or shards and
  /// an index); transformers can load the folder. Call it on one process. If
  /// parameters are sharded (`ShardStage::kParameters`), call it on all ranks:
  /// rank 0 gathers them and writes. The same applies to tensor parallelism.
  /// Throws `SystemError`.
  void save_pretrained(
      const std::filesystem::path& folder,
      const SavePretrainedOptions& options = {}) const;
  /// The text of `config.json` for weights of this dtype, by default the dtype
  /// in the configuration. `Accelerator::save_model` writes it too.
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
  /// The maximum number of tokens to add.
  int64_t max_new_tokens = 20;
  /// Sample tokens. Otherwise the most likely one is chosen, and the next three
  /// fields have no effect.
  bool do_sample = false;
  /// Positive. Values below 1 sharpen the distribution.
  double temperature = 1.0;
  /// Sample from the k most likely tokens; 0 for all.
  int64_t top_k = 50;
  /// Sample from the most likely tokens that together have this probability.
  double top_p = 1.0;
  /// Tokens that end a sequence. Default: those in the folder
  /// (`generation_config.json`, else `config.json`); empty for none.
  std::optional<std::vector<int64_t>> eos_token_ids = {};
  /// Fills a batch after the end of a sequence. Default: the folder's, else the
  /// first of `eos_token_ids`.
  std::optional<int64_t> pad_token_id = {};
  /// Torch's default generator if not set.
  std::optional<at::Generator> generator = {};
  /// Cache keys and values of earlier tokens instead of recomputing them.
  bool use_cache = true;
};

/// A language model that generates text.
class ACCELERATE_API CausalLanguageModel : public PretrainedModel {
 public:
  /// The prompt (B x T) followed by up to `max_new_tokens` tokens, as in
  /// transformers' `generate`; sequences that end early are filled with
  /// `pad_token_id`. Pad prompts of different lengths on the left, with an
  /// `attention_mask` (by default derived from the padding token, if that
  /// differs from the end tokens). Uses the model's mode: call `eval()` first.
  /// Throws `UsageError` for padding on the right, options out of range, and
  /// more tokens than positions.
  ///
  /// With tensor parallelism, the ranks that divide the model pass the same
  /// prompt and receive the same tokens.
  ///
  /// If parameters are sharded (`ShardStage::kParameters`), call it on all
  /// ranks. Prompts, options and numbers of tokens may differ: a rank that has
  /// finished keeps computing until all have.
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
  /// The maximum number of tokens; empty if it is not limited.
  virtual std::optional<int64_t> max_tokens() const = 0;

  /// The text of `generation_config.json`; empty if there is none.
  std::string generation_config_;
};

/// The bare model: hidden states, no head.
class ACCELERATE_API AutoModel {
 public:
  /// Reads a folder with `config.json` and `model.safetensors` (or shards and
  /// `model.safetensors.index.json`). Names in old files and of models with and
  /// without a head are matched as in transformers; see `load_report`. Throws
  /// `ConfigError` for a folder that is incomplete or does not match, naming
  /// the file and what to do, and what `safetensors::Checkpoint` throws.
  static std::shared_ptr<PretrainedModel> from_pretrained(
      const std::filesystem::path& folder,
      const PretrainedOptions& options = {});
  /// Initialises new weights by the configuration's rules with torch's default
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
