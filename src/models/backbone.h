// SPDX-License-Identifier: Apache-2.0
// Base classes of architectures: a backbone of equal blocks, and heads.
//
// Shapes: B batch, T tokens, C channels, V vocabulary, L labels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/models.h"
#include "models/attention.h"
#include "models/layers.h"

namespace accelerate::models {

/// The inputs that all blocks of one forward pass share. Copies share tensors.
struct Pass {
  AttentionMask mask;
  /// If set, the keys and values of earlier tokens.
  KeyValueCache* cache = nullptr;
  /// The number of tokens before the first token of this pass.
  int64_t num_past = 0;
  /// Rotary tables, if the architecture has them: (B or 1) x 1 x T x D, or (B
  /// or 1) x T x D / 2 in float32 if our own kernels rotate.
  at::Tensor cos;
  at::Tensor sin;
  bool is_fused = false;
  /// Whether a block also computes the input norm of the next one.
  bool reads_ahead = true;
};

/// What a block passes to the next one. Both tensors are B x T x C.
struct Hidden {
  /// The residual stream.
  at::Tensor x;
  /// The input of the next block: the norm of `x`, or the values of `x` again
  /// (`NormedTwice`). Computed together with `x`, in one pass over it.
  /// Undefined if the next block computes it from `x`.
  at::Tensor read;
};

/// One of the equal layers of a model.
class Block : public torch::nn::Module {
 public:
  /// `weights`, if set, receives the attention weights.
  virtual Hidden
  forward(const Hidden& hidden, const Pass& pass, at::Tensor* weights) = 0;
};

/// Tells each block which norm follows it: the first norm of the next block, or
/// `last` after the last block.
template <class SomeBlock, class Norm>
void lead_to_next(
    const std::vector<std::shared_ptr<SomeBlock>>& blocks,
    const std::shared_ptr<Norm>& last) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i]->lead_to(
        i + 1 < blocks.size() ? blocks[i + 1]->first_norm() : last);
  }
}

struct BackboneOutput {
  at::Tensor hidden_BTC;
  /// Set for packed sequences. B is then 1, except in pooled outputs.
  std::shared_ptr<const PackedRows> packed;
  /// The pooled output. Undefined if the architecture does not pool.
  at::Tensor pooled_BC;
  std::vector<at::Tensor> hidden_states;
  std::vector<at::Tensor> attentions;

  /// B x C: the first token of each sequence.
  at::Tensor first() const {
    return packed ? packed->first(hidden_BTC) : hidden_BTC.select(1, 0);
  }
};

/// Limits that a backbone checks before it runs.
struct BackboneLimits {
  int64_t vocab_size = 0;
  /// The maximum number of tokens. Empty if it is not limited.
  std::optional<int64_t> max_tokens = {};
  bool is_causal = false;
};

/// The model without a head: a complete `AutoModel`, or a part of a model with
/// a head.
class Backbone : public PretrainedModel {
 public:
  Backbone(const ModelConfig& config, BackboneLimits limits)
      : PretrainedModel(config), limits_(limits) {}

  BackboneOutput encode(
      const ModelInputs& inputs,
      const ForwardOptions& options,
      KeyValueCache* cache = nullptr);
  /// The word embeddings, V x C, which language model heads share.
  virtual const at::Tensor& word_embeddings() const = 0;
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  const BackboneLimits& limits() const { return limits_; }

 protected:
  void add_block(const std::string& path, std::shared_ptr<Block> block);
  /// The positions of this pass's tokens in their sequences, from 0: B x T or 1
  /// x T.
  static at::Tensor positions(const ModelInputs& inputs, const Pass& pass);

 private:
  virtual at::Tensor embed(const ModelInputs& inputs, Pass& pass) = 0;
  /// Computes the output from the result of the last block.
  virtual at::Tensor finish(const Hidden& hidden) { return hidden.x; }
  virtual at::Tensor pool(const BackboneOutput& /*output*/) { return {}; }
  ModelOutput run(const ModelInputs& inputs, const ForwardOptions& options)
      override;
  void check(const ModelInputs& inputs, int64_t num_past) const;
  void check_length(int64_t num_tokens) const;

  BackboneLimits limits_;
  std::vector<std::shared_ptr<Block>> blocks_;
};

/// A classifier of whole sequences. Derived classes add a head.
class SequenceClassifier : public PretrainedModel {
 public:
  /// Registers the backbone as `prefix`.
  SequenceClassifier(
      const ModelConfig& config,
      const std::string& prefix,
      std::shared_ptr<Backbone> backbone);
  /// Every rank has the whole head.
  TensorPlan tensor_plan() const override;

 private:
  /// Returns the logits, B x L.
  virtual at::Tensor classify(
      const BackboneOutput& output,
      const ModelInputs& inputs) = 0;
  ModelOutput run(const ModelInputs& inputs, const ForwardOptions& options)
      final;

  std::string prefix_;
  std::shared_ptr<Backbone> backbone_;
};

/// Classifies by the last token that is not padding, for causal models.
class LastTokenClassifier final : public SequenceClassifier {
 public:
  /// The head is `score`, without bias.
  LastTokenClassifier(
      const ModelConfig& config,
      const std::string& prefix,
      std::shared_ptr<Backbone> backbone);

 private:
  at::Tensor classify(const BackboneOutput& output, const ModelInputs& inputs)
      override;

  std::shared_ptr<Linear> score_;
  std::optional<int64_t> padding_id_;
};

/// Predicts masked tokens: a transform of the hidden states, then a product
/// with the embeddings (or separate weights) and a bias.
class MaskedLanguageModel final : public PretrainedModel {
 public:
  /// Paths under which the submodules are registered.
  struct Paths {
    const char* backbone;
    const char* dense;
    const char* norm;
    /// The module that owns the bias.
    const char* bias;
    /// The module that owns the weights unless they are the embeddings.
    const char* decoder;
  };
  struct Options {
    Activation activation;
    double layer_norm_eps;
    bool is_tied;
  };
  MaskedLanguageModel(
      const ModelConfig& config,
      std::shared_ptr<Backbone> backbone,
      const Paths& paths,
      const Options& options);
  TensorPlan tensor_plan() const override;

 private:
  /// The weight of the product, V x C.
  const at::Tensor& vocabulary() const;
  /// See `project_to_vocabulary`.
  at::Tensor predict(const at::Tensor& hidden_BTC) const;
  ModelOutput run(const ModelInputs& inputs, const ForwardOptions& options)
      override;

  Paths paths_;
  std::shared_ptr<Backbone> backbone_;
  Activation activation_;
  std::shared_ptr<Bias> bias_;
  std::shared_ptr<Linear> dense_;
  std::shared_ptr<LayerNorm> norm_;
  /// A separate product. Null if the word embeddings are used.
  std::shared_ptr<Linear> decoder_;
};

/// Predicts the next token with `lm_head`, without bias. Its weight may be the
/// word embeddings.
class CausalModel final : public CausalLanguageModel {
 public:
  CausalModel(
      const ModelConfig& config,
      const std::string& prefix,
      std::shared_ptr<Backbone> backbone,
      bool is_tied);
  TensorPlan tensor_plan() const override;

 private:
  /// The weight of `lm_head`, V x C.
  const at::Tensor& vocabulary() const;
  /// See `project_to_vocabulary`.
  at::Tensor predict(const at::Tensor& hidden_BTC) const;
  ModelOutput run(const ModelInputs& inputs, const ForwardOptions& options)
      override;
  at::Tensor next_logits(const ModelInputs& inputs, KeyValueCache* cache)
      override;
  int64_t num_layers() const override { return backbone_->num_blocks(); }
  std::optional<int64_t> max_tokens() const override {
    return backbone_->limits().max_tokens;
  }

  std::string prefix_;
  std::shared_ptr<Backbone> backbone_;
  /// A separate head. Null if the word embeddings are used.
  std::shared_ptr<Linear> head_;
};

} // namespace accelerate::models
