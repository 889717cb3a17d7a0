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
// The supported architectures (`model_type`) are bert, distilbert, gpt2, llama
// and roberta. docs/adding.md shows how to add one. `named_parameters()`
// returns the names of transformers' `state_dict()`. Tied weights appear once.
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
  /// The number of classes of a classifier. Default: that of the configuration.
  std::optional<int64_t> num_labels = {};
  /// Class names, saved with the model. Also sets `num_labels`.
  std::vector<std::string> labels = {};
  /// "regression", "single_label_classification" or
  /// "multi_label_classification". By default, it is read from the
  /// configuration or else derived from the labels: a single label means
  /// regression, integer labels mean classes, and other labels mean a
  /// multi-label problem.
  std::string problem_type = {};
  /// The dtype of the weights: float32, bfloat16 or float16. Default: that of
  /// the configuration, or else that of the first weight in the file, or else
  /// float32.
  std::optional<at::ScalarType> dtype = {};
  /// Reinitialise weights whose shape differs (such as a head with a different
  /// number of classes) instead of failing.
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
  /// Parameters that no file contains, such as those of a new head. They are
  /// initialised.
  std::vector<std::string> missing = {};
  /// Tensors in the files without a counterpart in the model.
  std::vector<std::string> unexpected = {};
  /// Parameters whose shape differs. They are initialised because
  /// `ignore_mismatched_sizes` was set.
  std::vector<Mismatch> mismatched = {};
  /// The text of the warning. Empty if everything matched.
  std::string summary() const;
};

struct SavePretrainedOptions {
  /// Weights that exceed this size are split into several files with an index.
  std::uint64_t max_shard_bytes = 50'000'000'000;
};

/// A custom struct whose members have the same names as those of `ModelInputs`.
template <class B>
concept BatchStruct =
    !std::same_as<B, ModelInputs> && requires(const B& batch) {
  { batch.input_ids } -> std::convertible_to<at::Tensor>;
};

/// A model with weights. `from_pretrained` returns it in evaluation mode, as
/// transformers does. Call `train()` before training.
class ACCELERATE_API PretrainedModel : public torch::nn::Module,
                                       public HasTensorPlan {
 public:
  /// Throws `UsageError` if shapes do not match, if there are more tokens than
  /// the model has positions, and, on the CPU, if token ids or labels are out
  /// of range. (On a GPU, a device-side assertion of CUDA aborts the program.)
  ModelOutput forward(
      const ModelInputs& inputs,
      const ForwardOptions& options = {});
  /// Takes a map whose keys are the names of members of `ModelInputs`. Throws
  /// `UsageError` if there are other names.
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

  /// Enables activation checkpointing: in training, keeps only the inputs of
  /// blocks and recomputes the rest in the backward pass (`recompute.h`). This
  /// saves memory and costs a second forward pass. Off by default.
  void gradient_checkpointing_enable(bool enabled = true);

  /// How tensor parallelism divides the model (docs/guide_parallelism.md).
  /// Empty if the architecture has no plan.
  TensorPlan tensor_plan() const override { return {}; }

  const ModelConfig& config() const { return config_; }
  /// The class name in transformers, such as "BertForSequenceClassification".
  const std::string& class_name() const { return class_name_; }
  /// How the files matched. Empty for a model created by `from_config`.
  const LoadReport& load_report() const { return report_; }

  /// Writes `config.json` and the weights (`model.safetensors`, or shards and
  /// an index). transformers can load the folder. Call it on one process. If
  /// parameters are sharded (`ShardStage::kParameters`) or divided by tensor
  /// parallelism, call it on all ranks. Rank 0 then gathers and writes them.
  /// Throws `SystemError`.
  void save_pretrained(
      const std::filesystem::path& folder,
      const SavePretrainedOptions& options = {}) const;
  /// Returns the text of `config.json` for weights of this dtype. By default,
  /// this is the dtype in the configuration. `Accelerator::save_model` also
  /// writes this text.
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
  /// Sample tokens. If false, the most likely token is chosen, and the next
  /// three fields have no effect.
  bool do_sample = false;
  /// Must be positive. Values below 1 sharpen the distribution.
  double temperature = 1.0;
  /// Sample from the k most likely tokens. 0 means all tokens.
  int64_t top_k = 50;
  /// Sample from the smallest set of most likely tokens whose probabilities add
  /// up to this value.
  double top_p = 1.0;
  /// Tokens that end a sequence. Default: those in the folder
  /// (`generation_config.json`, or else `config.json`). An empty list means
  /// that no token ends a sequence.
  std::optional<std::vector<int64_t>> eos_token_ids = {};
  /// The token that pads a batch after the end of a sequence. Default: that of
  /// the folder, or else the first of `eos_token_ids`.
  std::optional<int64_t> pad_token_id = {};
  /// The random generator. Default: torch's default generator.
  std::optional<at::Generator> generator = {};
  /// Cache keys and values of earlier tokens instead of recomputing them.
  bool use_cache = true;
};

/// A language model that generates text.
class ACCELERATE_API CausalLanguageModel : public PretrainedModel {
 public:
  /// Returns the prompt (B x T) followed by up to `max_new_tokens` tokens, like
  /// transformers' `generate`. Sequences that end early are padded with
  /// `pad_token_id`. Pad prompts of different lengths on the left and pass an
  /// `attention_mask`. By default, the mask is derived from the padding token,
  /// if that differs from the end tokens. The model's mode is not changed, so
  /// call `eval()` first. Throws `UsageError` if the padding is on the right,
  /// if options are out of range, or if there are more tokens than positions.
  ///
  /// With tensor parallelism, the ranks that divide the model pass the same
  /// prompt and receive the same tokens.
  ///
  /// If parameters are sharded (`ShardStage::kParameters`), call it on all
  /// ranks. Prompts, options and numbers of tokens may differ between ranks. A
  /// rank that has finished keeps computing until all ranks have finished.
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
  /// Returns the logits (B x V) of the token after `inputs`. `cache` may be
  /// null.
  virtual at::Tensor next_logits(
      const ModelInputs& inputs,
      class KeyValueCache* cache) = 0;
  virtual int64_t num_layers() const = 0;
  /// The maximum number of tokens. Empty if it is not limited.
  virtual std::optional<int64_t> max_tokens() const = 0;

  /// The text of `generation_config.json`. Empty if there is no such file.
  std::string generation_config_;
};

/// The bare model, which returns hidden states and has no head.
class ACCELERATE_API AutoModel {
 public:
  /// Reads a folder with `config.json` and `model.safetensors` (or shards and
  /// `model.safetensors.index.json`). Names in old files, and names of models
  /// with and without a head, are matched as in transformers (see
  /// `load_report`). Throws a `ConfigError` if the folder is incomplete or does
  /// not match. The message names the file and says what to do. Also throws the
  /// same errors as `safetensors::Checkpoint`.
  static std::shared_ptr<PretrainedModel> from_pretrained(
      const std::filesystem::path& folder,
      const PretrainedOptions& options = {});
  /// Initialises new weights according to the configuration, with torch's
  /// default generator. The model is in training mode.
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
