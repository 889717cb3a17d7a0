// SPDX-License-Identifier: Apache-2.0
// What architectures fill in: a backbone of equal blocks, and heads on it.
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

/// What all blocks of one forward pass share. Tensors are shared by copies.
struct Pass {
  AttentionMask mask;
  /// Where set, keys and values of earlier calls.
  KeyValueCache* cache = nullptr;
  /// Tokens before the first one of this pass.
  int64_t num_past = 0;
  /// Rotary tables, where the architecture has them: (B or 1) x 1 x T x D, or
  /// (B or 1) x T x D / 2 in float32 where kernels of our own rotate.
  at::Tensor cos;
  at::Tensor sin;
  bool is_fused = false;
  /// Whether a block also gives what the next one reads.
  bool reads_ahead = true;
};

/// What goes from block to block, both B x T x C.
struct Hidden {
  /// What the next block adds to.
  at::Tensor x;
  /// What it computes with: the norm of `x`, or `x` once more for a second
  /// reader. Made where `x` is, in one pass over it. Undefined where the next
  /// block makes it from `x`.
  at::Tensor read;
};

/// One of the equal layers that a model is a stack of.
class Block : public torch::nn::Module {
 public:
  /// `weights`, where set, receives the attention.
  virtual Hidden
  forward(const Hidden& hidden, const Pass& pass, at::Tensor* weights) = 0;
};

/// Tells each block the norm behind it: the first one of the next block, behind
/// the last block `last`.
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
  /// Set where the sequences are packed; B is then 1 but for what is pooled.
  std::shared_ptr<const PackedRows> packed;
  /// Undefined where the architecture does not pool.
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
  /// None where any number of tokens will do.
  std::optional<int64_t> max_tokens = {};
  bool is_causal = false;
};

/// The model without a head: `AutoModel` by itself, or a part of one with a
/// head.
class Backbone : public PretrainedModel {
 public:
  Backbone(const ModelConfig& config, BackboneLimits limits)
      : PretrainedModel(config), limits_(limits) {}

  BackboneOutput encode(
      const ModelInputs& inputs,
      const ForwardOptions& options,
      KeyValueCache* cache = nullptr);
  /// V x C, which language model heads share.
  virtual const at::Tensor& word_embeddings() const = 0;
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  const BackboneLimits& limits() const { return limits_; }

 protected:
  void add_block(const std::string& path, std::shared_ptr<Block> block);
  /// B x T or 1 x T: the places of the tokens of this pass in their sequences,
  /// counted from 0.
  static at::Tensor positions(const ModelInputs& inputs, const Pass& pass);

 private:
  virtual at::Tensor embed(const ModelInputs& inputs, Pass& pass) = 0;
  /// After the last block.
  virtual at::Tensor finish(const Hidden& hidden) { return hidden.x; }
  virtual at::Tensor pool(const BackboneOutput& /*output*/) { return {}; }
  ModelOutput run(const ModelInputs& inputs, const ForwardOptions& options)
      override;
  void check(const ModelInputs& inputs, int64_t num_past) const;
  void check_length(int64_t num_tokens) const;

  BackboneLimits limits_;
  std::vector<std::shared_ptr<Block>> blocks_;
};

/// A classifier of whole sequences; derived classes are its head.
class SequenceClassifier : public PretrainedModel {
 public:
  /// Registers the backbone as `prefix`.
  SequenceClassifier(
      const ModelConfig& config,
      const std::string& prefix,
      std::shared_ptr<Backbone> backbone);

 private:
  /// B x L.
  virtual at::Tensor classify(
      const BackboneOutput& output,
      const ModelInputs& inputs) = 0;
  ModelOutput run(const ModelInputs& inputs, const ForwardOptions& options)
      final;

  std::shared_ptr<Backbone> backbone_;
};

/// Classifies by the last token that is not padding: causal models.
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

/// Guesses hidden tokens: a transform of the hidden states, then a product with
/// the embeddings (or with weights of its own) and a bias.
class MaskedLanguageModel final : public PretrainedModel {
 public:
  /// Where its parts are registered.
  struct Paths {
    const char* backbone;
    const char* dense;
    const char* norm;
    /// The module that owns the bias.
    const char* bias;
    /// The module that owns the weights where they are not the embeddings.
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

 private:
  /// B x T x V, or more columns: see `project_to_vocabulary`.
  at::Tensor predict(const at::Tensor& hidden_BTC) const;
  ModelOutput run(const ModelInputs& inputs, const ForwardOptions& options)
      override;

  std::shared_ptr<Backbone> backbone_;
  Activation activation_;
  std::shared_ptr<Bias> bias_;
  std::shared_ptr<Linear> dense_;
  std::shared_ptr<LayerNorm> norm_;
  /// Null where the weights are the embeddings.
  std::shared_ptr<Linear> decoder_;
};

/// Guesses the next token by `lm_head`, without bias, whose weight may be that
/// of the embeddings.
class CausalModel final : public CausalLanguageModel {
 public:
  CausalModel(
      const ModelConfig& config,
      const std::string& prefix,
      std::shared_ptr<Backbone> backbone,
      bool is_tied);

 private:
  /// B x T x V, or more columns: see `project_to_vocabulary`.
  at::Tensor predict(const at::Tensor& hidden_BTC) const;
  ModelOutput run(const ModelInputs& inputs, const ForwardOptions& options)
      override;
  at::Tensor next_logits(const ModelInputs& inputs, KeyValueCache* cache)
      override;
  int64_t num_layers() const override { return backbone_->num_blocks(); }
  std::optional<int64_t> max_tokens() const override {
    return backbone_->limits().max_tokens;
  }

  std::shared_ptr<Backbone> backbone_;
  /// Null where the weight is that of the embeddings.
  std::shared_ptr<Linear> head_;
};

} // namespace accelerate::models
