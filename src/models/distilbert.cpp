// SPDX-License-Identifier: Apache-2.0
// DistilBERT (`model_type` "distilbert").
#include <ATen/ATen.h>

#include <cmath>

#include "core/base/str.h"
#include "models/architecture.h"
#include "models/backbone.h"

namespace accelerate::models {
namespace {

constexpr double kLayerNormEpsilon = 1e-12;

/// Transformers' names and defaults.
struct DistilBertConfig {
  explicit DistilBertConfig(const ModelConfig& config)
      : vocab_size(config.size("vocab_size", 30522)),
        max_position_embeddings(config.size("max_position_embeddings", 512)),
        n_layers(config.size("n_layers", 6)),
        n_heads(config.size("n_heads", 12)),
        dim(config.size("dim", 768)),
        hidden_dim(config.size("hidden_dim", 3072)),
        dropout(config.number("dropout", 0.1)),
        attention_dropout(config.number("attention_dropout", 0.1)),
        activation(read_activation(config, "activation", "gelu")),
        seq_classif_dropout(config.number("seq_classif_dropout", 0.2)),
        pad_token_id(config.integer("pad_token_id").value_or(0)),
        tie_word_embeddings(config.boolean("tie_word_embeddings", true)) {
    check_heads(config, dim, n_heads);
  }

  int64_t vocab_size;
  int64_t max_position_embeddings;
  int64_t n_layers;
  int64_t n_heads;
  int64_t dim;
  int64_t hidden_dim;
  double dropout;
  double attention_dropout;
  Activation activation;
  double seq_classif_dropout;
  int64_t pad_token_id;
  bool tie_word_embeddings;
};

class DistilBertBlock final : public Block {
 public:
  explicit DistilBertBlock(const DistilBertConfig& config)
      : config_(config), head_channels_(config.dim / config.n_heads) {
    const int64_t C = config.dim;
    const int64_t I = config.hidden_dim;
    query_ = make_at<Linear>(*this, "attention.q_lin", C, C);
    key_ = make_at<Linear>(*this, "attention.k_lin", C, C);
    value_ = make_at<Linear>(*this, "attention.v_lin", C, C);
    out_ = make_at<Linear>(*this, "attention.out_lin", C, C);
    attention_norm_ =
        make_at<LayerNorm>(*this, "sa_layer_norm", C, kLayerNormEpsilon);
    up_ = make_at<Linear>(*this, "ffn.lin1", C, I);
    down_ = make_at<Linear>(*this, "ffn.lin2", I, C);
    output_norm_ =
        make_at<LayerNorm>(*this, "output_layer_norm", C, kLayerNormEpsilon);
  }

  Hidden forward(const Hidden& hidden, const Pass& pass, at::Tensor* weights)
      override {
    const auto [queries_BTC, keys_BTC, values_BTC] = apply_together(
        hidden.read.defined() ? hidden.read : hidden.x,
        *query_,
        *key_,
        *value_);
    const auto context_BTC = attend(
        split_heads(queries_BTC, head_channels_),
        split_heads(keys_BTC, head_channels_),
        split_heads(values_BTC, head_channels_),
        pass.mask,
        {.scale = std::pow(static_cast<double>(head_channels_), -0.5),
         .dropout = is_training() ? config_.attention_dropout : 0.0,
         .weights = weights});
    const auto [a_BTC, read_BTC] = add_and_norm_twice(
        hidden.x, branch_of(*out_, context_BTC), 0.0, *attention_norm_);
    const auto [x_BTC, next_BTC] = add_and_norm_twice(
        a_BTC,
        branch_of(*up_, config_.activation, *down_, read_BTC),
        is_training() ? config_.dropout : 0.0,
        *output_norm_);
    return {x_BTC, next_BTC};
  }

 private:
  DistilBertConfig config_;
  int64_t head_channels_;
  std::shared_ptr<Linear> query_, key_, value_, out_, up_, down_;
  std::shared_ptr<LayerNorm> attention_norm_, output_norm_;
};

class DistilBertModel final : public Backbone {
 public:
  DistilBertModel(
      const ModelConfig& model_config,
      const DistilBertConfig& config)
      : Backbone(
            model_config,
            {.vocab_size = config.vocab_size,
             .max_tokens = config.max_position_embeddings}),
        num_heads_(config.n_heads),
        dropout_(config.dropout) {
    words_ = make_at<Embedding>(
        *this,
        "embeddings.word_embeddings",
        config.vocab_size,
        config.dim,
        config.pad_token_id);
    positions_ = make_at<Embedding>(
        *this,
        "embeddings.position_embeddings",
        config.max_position_embeddings,
        config.dim);
    norm_ = make_at<LayerNorm>(
        *this, "embeddings.LayerNorm", config.dim, kLayerNormEpsilon);
    for (int64_t i = 0; i < config.n_layers; ++i) {
      add_block(
          str_cat("transformer.layer.", i),
          std::make_shared<DistilBertBlock>(config));
    }
  }

  const at::Tensor& word_embeddings() const override { return words_->weight; }
  TensorPlan tensor_plan() const override {
    using enum TensorSplit;
    const std::string layer = "transformer.layer.*.";
    return {
        {.modules = "embeddings.word_embeddings", .split = kVocabulary},
        {layer + "attention.q_lin", kColumns, num_heads_},
        {layer + "attention.k_lin", kColumns, num_heads_},
        {layer + "attention.v_lin", kColumns, num_heads_},
        {layer + "attention.out_lin", kRows, num_heads_},
        {.modules = layer + "ffn.lin1", .split = kColumns},
        {.modules = layer + "ffn.lin2", .split = kRows}};
  }

 private:
  at::Tensor embed(const ModelInputs& inputs, Pass& pass) override {
    const auto sum_BTC =
        (*words_)(inputs.input_ids) + (*positions_)(positions(inputs, pass));
    return apply_dropout((*norm_)(sum_BTC), dropout_, is_training());
  }

  int64_t num_heads_;
  double dropout_;
  std::shared_ptr<Embedding> words_, positions_;
  std::shared_ptr<LayerNorm> norm_;
};

class DistilBertForSequenceClassification final : public SequenceClassifier {
 public:
  DistilBertForSequenceClassification(
      const ModelConfig& model_config,
      const DistilBertConfig& config)
      : SequenceClassifier(
            model_config,
            "distilbert",
            std::make_shared<DistilBertModel>(model_config, config)),
        dropout_(config.seq_classif_dropout) {
    const int64_t C = config.dim;
    pre_classifier_ = make_at<Linear>(*this, "pre_classifier", C, C);
    classifier_ =
        make_at<Linear>(*this, "classifier", C, model_config.num_labels());
  }

 private:
  at::Tensor classify(const BackboneOutput& output, const ModelInputs&)
      override {
    const auto x_BC = at::relu((*pre_classifier_)(output.first()));
    return (*classifier_)(apply_dropout(x_BC, dropout_, is_training()));
  }

  double dropout_;
  std::shared_ptr<Linear> pre_classifier_, classifier_;
};

std::shared_ptr<PretrainedModel> make_distilbert_base(
    const ModelConfig& config) {
  return std::make_shared<DistilBertModel>(config, DistilBertConfig(config));
}

std::shared_ptr<PretrainedModel> make_distilbert_classifier(
    const ModelConfig& config) {
  return std::make_shared<DistilBertForSequenceClassification>(
      config, DistilBertConfig(config));
}

std::shared_ptr<PretrainedModel> make_distilbert_masked_lm(
    const ModelConfig& config) {
  const DistilBertConfig distilbert(config);
  return std::make_shared<MaskedLanguageModel>(
      config,
      std::make_shared<DistilBertModel>(config, distilbert),
      MaskedLanguageModel::Paths{
          .backbone = "distilbert",
          .dense = "vocab_transform",
          .norm = "vocab_layer_norm",
          .bias = "vocab_projector",
          .decoder = "vocab_projector"},
      MaskedLanguageModel::Options{
          .activation = distilbert.activation,
          .layer_norm_eps = kLayerNormEpsilon,
          .is_tied = distilbert.tie_word_embeddings});
}

} // namespace

const Architecture& distilbert_architecture() {
  static const Architecture architecture = {
      .model_type = "distilbert",
      .base_prefix = "distilbert",
      .is_tied_by_default = true,
      .variants =
          {{.task = Task::kBase,
            .class_name = "DistilBertModel",
            .make = make_distilbert_base},
           {.task = Task::kSequenceClassification,
            .class_name = "DistilBertForSequenceClassification",
            .make = make_distilbert_classifier},
           {.task = Task::kMaskedLM,
            .class_name = "DistilBertForMaskedLM",
            .make = make_distilbert_masked_lm,
            .tied =
                {{"vocab_projector.weight",
                  "distilbert.embeddings.word_embeddings.weight"}}}},
      .ignored_endings = {"position_ids"}};
  return architecture;
}

} // namespace accelerate::models
