// SPDX-License-Identifier: Apache-2.0
// RoBERTa (`model_type` "roberta"): BERT with other positions and heads.
#include <ATen/ATen.h>

#include "models/architecture.h"
#include "models/bert.h"

namespace accelerate::models {
namespace {

struct RobertaConfig : BertConfig {
  explicit RobertaConfig(const ModelConfig& config)
      : BertConfig(config, /*default_padding=*/1) {}
};

std::shared_ptr<BertModel> make_roberta_backbone(
    const ModelConfig& model_config,
    const RobertaConfig& config,
    bool with_pooler) {
  return std::make_shared<BertModel>(
      model_config,
      config,
      BertModel::Variant{
          .with_pooler = with_pooler, .position_padding = config.pad_token_id});
}

class RobertaForSequenceClassification final : public SequenceClassifier {
 public:
  RobertaForSequenceClassification(
      const ModelConfig& model_config,
      const RobertaConfig& config)
      : SequenceClassifier(
            model_config,
            "roberta",
            make_roberta_backbone(model_config, config, /*with_pooler=*/false)),
        dropout_(config.classifier_dropout) {
    const int64_t C = config.hidden_size;
    dense_ = make_at<Linear>(*this, "classifier.dense", C, C);
    out_ = make_at<Linear>(
        *this, "classifier.out_proj", C, model_config.num_labels());
  }

 private:
  at::Tensor classify(const BackboneOutput& output, const ModelInputs&)
      override {
    const auto first_BC = drop(output.first());
    return (*out_)(drop(at::tanh((*dense_)(first_BC))));
  }
  at::Tensor drop(const at::Tensor& x) const {
    return apply_dropout(x, dropout_, is_training());
  }

  double dropout_;
  std::shared_ptr<Linear> dense_, out_;
};

std::shared_ptr<PretrainedModel> make_roberta_base(const ModelConfig& config) {
  return make_roberta_backbone(
      config, RobertaConfig(config), /*with_pooler=*/true);
}

std::shared_ptr<PretrainedModel> make_roberta_classifier(
    const ModelConfig& config) {
  return std::make_shared<RobertaForSequenceClassification>(
      config, RobertaConfig(config));
}

std::shared_ptr<PretrainedModel> make_roberta_masked_lm(
    const ModelConfig& config) {
  const RobertaConfig roberta(config);
  return std::make_shared<MaskedLanguageModel>(
      config,
      make_roberta_backbone(config, roberta, /*with_pooler=*/false),
      MaskedLanguageModel::Paths{
          .backbone = "roberta",
          .dense = "lm_head.dense",
          .norm = "lm_head.layer_norm",
          .bias = "lm_head",
          .decoder = "lm_head.decoder"},
      MaskedLanguageModel::Options{
          .activation = [](const at::Tensor& x) { return at::gelu(x); },
          .layer_norm_eps = roberta.layer_norm_eps,
          .is_tied = roberta.tie_word_embeddings});
}

} // namespace

const Architecture& roberta_architecture() {
  static const Architecture architecture = {
      .model_type = "roberta",
      .base_prefix = "roberta",
      .is_tied_by_default = true,
      .variants =
          {{.task = Task::kBase,
            .class_name = "RobertaModel",
            .make = make_roberta_base},
           {.task = Task::kSequenceClassification,
            .class_name = "RobertaForSequenceClassification",
            .make = make_roberta_classifier},
           {.task = Task::kMaskedLM,
            .class_name = "RobertaForMaskedLM",
            .make = make_roberta_masked_lm,
            .tied =
                {{"lm_head.decoder.weight",
                  "roberta.embeddings.word_embeddings.weight"},
                 {"lm_head.decoder.bias", "lm_head.bias"}}}},
      .ignored_endings = {"position_ids"}};
  return architecture;
}

} // namespace accelerate::models
