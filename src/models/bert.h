// SPDX-License-Identifier: Apache-2.0
// BERT's backbone, which RoBERTa shares except for the positions.
#pragma once

#include <memory>
#include <optional>

#include "models/backbone.h"

namespace accelerate::models {

/// The settings of BERT, with transformers' names and defaults.
struct BertConfig {
  explicit BertConfig(const ModelConfig& config, int64_t default_padding = 0);

  int64_t vocab_size;
  int64_t hidden_size;
  int64_t num_hidden_layers;
  int64_t num_attention_heads;
  int64_t intermediate_size;
  Activation hidden_act;
  double hidden_dropout_prob;
  double attention_probs_dropout_prob;
  int64_t max_position_embeddings;
  int64_t type_vocab_size;
  double layer_norm_eps;
  double classifier_dropout;
  std::optional<int64_t> pad_token_id;
  bool tie_word_embeddings;
};

class BertModel : public Backbone {
 public:
  struct Variant {
    /// Whether the first token is pooled (`pooler`).
    bool with_pooler = true;
    /// RoBERTa: positions start after this token's id, which marks padding.
    std::optional<int64_t> position_padding = {};
  };
  BertModel(
      const ModelConfig& model_config,
      const BertConfig& config,
      const Variant& variant);

  const at::Tensor& word_embeddings() const override { return words_->weight; }
  TensorPlan tensor_plan() const override;

 private:
  at::Tensor embed(const ModelInputs& inputs, Pass& pass) override;
  at::Tensor pool(const BackboneOutput& output) override;
  at::Tensor padded_positions(const ModelInputs& inputs, const Pass& pass)
      const;

  std::optional<int64_t> position_padding_;
  int64_t num_heads_;
  double dropout_;
  std::shared_ptr<Embedding> words_;
  std::shared_ptr<Embedding> positions_;
  std::shared_ptr<Embedding> types_;
  std::shared_ptr<LayerNorm> norm_;
  std::shared_ptr<Linear> pooler_;
};

} // namespace accelerate::models
