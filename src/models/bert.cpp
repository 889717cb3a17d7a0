// SPDX-License-Identifier: Apache-2.0
// BERT (`model_type` "bert").
#include "models/bert.h"

#include <ATen/ATen.h>

#include <cmath>

#include "core/base/str.h"
#include "models/architecture.h"

namespace accelerate::models {
namespace {

class BertBlock final : public Block {
 public:
  explicit BertBlock(const BertConfig& config)
      : config_(config),
        head_channels_(config.hidden_size / config.num_attention_heads) {
    const int64_t C = config.hidden_size;
    const int64_t I = config.intermediate_size;
    const double epsilon = config.layer_norm_eps;
    query_ = make_at<Linear>(*this, "attention.self.query", C, C);
    key_ = make_at<Linear>(*this, "attention.self.key", C, C);
    value_ = make_at<Linear>(*this, "attention.self.value", C, C);
    context_ = make_at<Linear>(*this, "attention.output.dense", C, C);
    context_norm_ =
        make_at<LayerNorm>(*this, "attention.output.LayerNorm", C, epsilon);
    up_ = make_at<Linear>(*this, "intermediate.dense", C, I);
    down_ = make_at<Linear>(*this, "output.dense", I, C);
    down_norm_ = make_at<LayerNorm>(*this, "output.LayerNorm", C, epsilon);
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
         .dropout = is_training() ? config_.attention_probs_dropout_prob : 0.0,
         .weights = weights});
    const double dropout = is_training() ? config_.hidden_dropout_prob : 0.0;
    const auto [a_BTC, read_BTC] = add_and_norm_twice(
        hidden.x, branch_of(*context_, context_BTC), dropout, *context_norm_);
    const auto [x_BTC, next_BTC] = add_and_norm_twice(
        a_BTC,
        branch_of(*up_, config_.hidden_act, *down_, read_BTC),
        dropout,
        *down_norm_);
    return {x_BTC, next_BTC};
  }

 private:
  BertConfig config_;
  int64_t head_channels_;
  std::shared_ptr<Linear> query_, key_, value_, context_, up_, down_;
  std::shared_ptr<LayerNorm> context_norm_, down_norm_;
};

class BertForSequenceClassification final : public SequenceClassifier {
 public:
  BertForSequenceClassification(
      const ModelConfig& model_config,
      const BertConfig& config)
      : SequenceClassifier(
            model_config,
            "bert",
            std::make_shared<BertModel>(
                model_config,
                config,
                BertModel::Variant{})),
        dropout_(config.classifier_dropout),
        classifier_(make_at<Linear>(
            *this,
            "classifier",
            config.hidden_size,
            model_config.num_labels())) {}

 private:
  at::Tensor classify(const BackboneOutput& output, const ModelInputs&)
      override {
    return (*classifier_)(
        apply_dropout(output.pooled_BC, dropout_, is_training()));
  }

  double dropout_;
  std::shared_ptr<Linear> classifier_;
};

std::shared_ptr<PretrainedModel> make_bert_masked_lm(
    const ModelConfig& config) {
  const BertConfig bert(config);
  auto backbone = std::make_shared<BertModel>(
      config, bert, BertModel::Variant{.with_pooler = false});
  return std::make_shared<MaskedLanguageModel>(
      config,
      backbone,
      MaskedLanguageModel::Paths{
          .backbone = "bert",
          .dense = "cls.predictions.transform.dense",
          .norm = "cls.predictions.transform.LayerNorm",
          .bias = "cls.predictions",
          .decoder = "cls.predictions.decoder"},
      MaskedLanguageModel::Options{
          .activation = bert.hidden_act,
          .layer_norm_eps = bert.layer_norm_eps,
          .is_tied = bert.tie_word_embeddings});
}

} // namespace

BertConfig::BertConfig(const ModelConfig& config, int64_t default_padding)
    : vocab_size(config.size("vocab_size", 30522)),
      hidden_size(config.size("hidden_size", 768)),
      num_hidden_layers(config.size("num_hidden_layers", 12)),
      num_attention_heads(config.size("num_attention_heads", 12)),
      intermediate_size(config.size("intermediate_size", 3072)),
      hidden_act(read_activation(config, "hidden_act", "gelu")),
      hidden_dropout_prob(config.number("hidden_dropout_prob", 0.1)),
      attention_probs_dropout_prob(
          config.number("attention_probs_dropout_prob", 0.1)),
      max_position_embeddings(config.size("max_position_embeddings", 512)),
      type_vocab_size(config.size("type_vocab_size", 2)),
      layer_norm_eps(config.number("layer_norm_eps", 1e-12)),
      classifier_dropout(
          config.number("classifier_dropout", hidden_dropout_prob)),
      pad_token_id(config.integer("pad_token_id").value_or(default_padding)),
      tie_word_embeddings(config.boolean("tie_word_embeddings", true)) {
  check_heads(config, hidden_size, num_attention_heads);
  if (config.boolean("is_decoder", false)) {
    config.refuse(
        "'is_decoder' is true, but decoders of this architecture are not "
        "supported");
  }
  const auto kind = config.text("position_embedding_type", "absolute");
  if (kind != "absolute") {
    config.refuse(str_cat(
        "'position_embedding_type' is '",
        kind,
        "', but only 'absolute' is supported"));
  }
}

BertModel::BertModel(
    const ModelConfig& model_config,
    const BertConfig& config,
    const Variant& variant)
    : Backbone(
          model_config,
          {.vocab_size = config.vocab_size,
           .max_tokens =
               config.max_position_embeddings -
               (variant.position_padding ? *variant.position_padding + 1 : 0)}),
      position_padding_(variant.position_padding),
      num_heads_(config.num_attention_heads),
      dropout_(config.hidden_dropout_prob) {
  const int64_t C = config.hidden_size;
  words_ = make_at<Embedding>(
      *this,
      "embeddings.word_embeddings",
      config.vocab_size,
      C,
      config.pad_token_id);
  positions_ = make_at<Embedding>(
      *this,
      "embeddings.position_embeddings",
      config.max_position_embeddings,
      C,
      position_padding_);
  types_ = make_at<Embedding>(
      *this, "embeddings.token_type_embeddings", config.type_vocab_size, C);
  norm_ = make_at<LayerNorm>(
      *this, "embeddings.LayerNorm", C, config.layer_norm_eps);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    add_block(
        str_cat("encoder.layer.", i), std::make_shared<BertBlock>(config));
  }
  if (variant.with_pooler) {
    pooler_ = make_at<Linear>(*this, "pooler.dense", C, C);
  }
}

at::Tensor BertModel::padded_positions(
    const ModelInputs& inputs,
    const Pass& pass) const {
  if (!position_padding_ || inputs.position_ids.defined()) {
    return positions(inputs, pass);
  }
  if (pass.mask.packed) {
    return positions(inputs, pass) + (*position_padding_ + 1);
  }
  // Padding keeps its own position; tokens are counted from the next one.
  const auto is_token = inputs.input_ids.ne(*position_padding_).to(at::kLong);
  return at::cumsum(is_token, 1) * is_token + *position_padding_;
}

at::Tensor BertModel::embed(const ModelInputs& inputs, Pass& pass) {
  const auto types = inputs.token_type_ids.defined()
                         ? (*types_)(inputs.token_type_ids)
                         : types_->weight.select(0, 0);
  // Computed once for the whole batch if neither depends on the sequence.
  const auto shared_BTC = types + (*positions_)(padded_positions(inputs, pass));
  const auto sum_BTC = (*words_)(inputs.input_ids) + shared_BTC;
  return apply_dropout((*norm_)(sum_BTC), dropout_, is_training());
}

TensorPlan BertModel::tensor_plan() const {
  using enum TensorSplit;
  const std::string layer = "encoder.layer.*.";
  return {
      {.modules = "embeddings.word_embeddings", .split = kVocabulary},
      {layer + "attention.self.query", kColumns, num_heads_},
      {layer + "attention.self.key", kColumns, num_heads_},
      {layer + "attention.self.value", kColumns, num_heads_},
      {layer + "attention.output.dense", kRows, num_heads_},
      {.modules = layer + "intermediate.dense", .split = kColumns},
      {.modules = layer + "output.dense", .split = kRows}};
}

at::Tensor BertModel::pool(const BackboneOutput& output) {
  return pooler_ ? at::tanh((*pooler_)(output.first())) : at::Tensor();
}

const Architecture& bert_architecture() {
  static const Architecture architecture = {
      .model_type = "bert",
      .base_prefix = "bert",
      .is_tied_by_default = true,
      .variants =
          {{.task = Task::kBase,
            .class_name = "BertModel",
            .make = [](const ModelConfig& config)
                -> std::shared_ptr<PretrainedModel> {
              return std::make_shared<BertModel>(
                  config, BertConfig(config), BertModel::Variant{});
            }},
           {.task = Task::kSequenceClassification,
            .class_name = "BertForSequenceClassification",
            .make = [](const ModelConfig& config)
                -> std::shared_ptr<PretrainedModel> {
              return std::make_shared<BertForSequenceClassification>(
                  config, BertConfig(config));
            }},
           {.task = Task::kMaskedLM,
            .class_name = "BertForMaskedLM",
            .make = make_bert_masked_lm,
            .tied =
                {{"cls.predictions.decoder.weight",
                  "bert.embeddings.word_embeddings.weight"},
                 {"cls.predictions.decoder.bias", "cls.predictions.bias"}}}},
      .ignored_endings = {"position_ids"}};
  return architecture;
}

} // namespace accelerate::models
