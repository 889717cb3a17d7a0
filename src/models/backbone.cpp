// SPDX-License-Identifier: Apache-2.0
#include "models/backbone.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "accelerate/training/recompute.h"
#include "core/base/str.h"
#include "models/losses.h"
#include "training/parallel/tensor_ranks.h"

namespace accelerate::models {
namespace {

// Fills the outputs that all models have.
ModelOutput answer(BackboneOutput&& output) {
  ModelOutput result;
  result.hidden_states = std::move(output.hidden_states);
  result.attentions = std::move(output.attentions);
  return result;
}

/// The plan of a backbone that is registered under `prefix`.
TensorPlan plan_of_part(const std::string& prefix, const Backbone& backbone) {
  auto plan = backbone.tensor_plan();
  for (auto& entry : plan) {
    entry.modules = str_cat(prefix, '.', entry.modules);
  }
  return plan;
}

/// Whether and for which tokens of the vocabulary a model is trained.
struct TokenTargets {
  /// B x T; undefined if no loss is needed.
  at::Tensor labels_BT;
  int64_t vocab_size = 0;
  bool is_training = false;
};

/// Fills in the logits and the loss. `logits_BTP` are those of
/// `project_to_vocabulary` with `weight_VC`.
void fill_predictions(
    ModelOutput& result,
    const at::Tensor& logits_BTP,
    const at::Tensor& weight_VC,
    const TokenTargets& targets) {
  const auto& labels_BT = targets.labels_BT;
  const int64_t V = targets.vocab_size;
  const auto info = divided(weight_VC);
  if (labels_BT.defined()) {
    result.loss = token_loss(logits_BTP, labels_BT, V, info.get());
  }
  if (!info) {
    result.logits = logits_BTP.narrow(-1, 0, V);
  } else if (!labels_BT.defined() || !targets.is_training) {
    result.logits = info->ranks->gather(logits_BTP, V);
  }
}

void check_packed(const ModelInputs& inputs) {
  const auto& ids = inputs.input_ids;
  const auto& mask = inputs.packed_mask;
  if (mask.dim() != 2 || ids.size(0) != 1 || ids.numel() == 0) {
    throw UsageError(str_cat(
        "[forward] packed_mask has shape ",
        mask.sizes(),
        " and input_ids has shape ",
        ids.sizes(),
        ", expected [sequences, longest] and [1, tokens of all sequences]. "
        "Create them with pack()"));
  }
  if (inputs.attention_mask.defined()) {
    throw UsageError(
        "[forward] attention_mask and packed_mask are both set. Packed "
        "sequences have no padding, so leave attention_mask out");
  }
  if (!mask.is_cpu()) {
    return;
  }
  const auto is_token = mask.ne(0);
  const int64_t num_tokens = is_token.sum().item<int64_t>();
  const auto lengths = is_token.sum(1, /*keepdim=*/true);
  if (num_tokens != ids.size(1) ||
      !is_token.equal(at::arange(mask.size(1)).lt(lengths))) {
    throw UsageError(str_cat(
        "[forward] packed_mask has ",
        num_tokens,
        " ones for ",
        ids.size(1),
        " input_ids. The mask must have a 1 for each input id, and each of its "
        "rows must be ones followed by zeros. Create it with pack()"));
  }
}

} // namespace

PretrainedModel::PretrainedModel(ModelConfig config)
    : config_(std::move(config)) {}

ModelOutput PretrainedModel::forward(
    const ModelInputs& inputs,
    const ForwardOptions& options) {
  return run(inputs, options);
}

ModelOutput PretrainedModel::forward(
    const std::map<std::string, at::Tensor>& batch,
    const ForwardOptions& options) {
  ModelInputs inputs;
  const std::map<std::string, at::Tensor*> fields = {
      {"input_ids", &inputs.input_ids},
      {"attention_mask", &inputs.attention_mask},
      {"token_type_ids", &inputs.token_type_ids},
      {"position_ids", &inputs.position_ids},
      {"packed_mask", &inputs.packed_mask},
      {"labels", &inputs.labels}};
  for (const auto& [name, tensor] : batch) {
    const auto field = fields.find(name);
    if (field == fields.end()) {
      throw UsageError(str_cat(
          "[forward] The batch has an unknown field '",
          name,
          "'. Remove or rename it. Expected: input_ids, attention_mask, "
          "token_type_ids, position_ids, packed_mask and labels"));
    }
    *field->second = tensor;
  }
  return run(inputs, options);
}

void PretrainedModel::gradient_checkpointing_enable(bool enabled) {
  // In a model with a head, the inner backbone reads the flag.
  apply([&](torch::nn::Module& module) {
    if (auto* model = dynamic_cast<PretrainedModel*>(&module)) {
      model->recomputes_activations_ = enabled;
    }
  });
}

void Backbone::add_block(
    const std::string& path,
    std::shared_ptr<Block> block) {
  add_at(*this, path, block);
  blocks_.push_back(std::move(block));
}

at::Tensor Backbone::positions(const ModelInputs& inputs, const Pass& pass) {
  if (inputs.position_ids.defined()) {
    return inputs.position_ids;
  }
  if (pass.mask.packed) {
    return pass.mask.packed->positions_1T();
  }
  const int64_t begin = pass.num_past;
  return at::arange(
             begin,
             begin + inputs.input_ids.size(1),
             inputs.input_ids.options())
      .unsqueeze(0);
}

void Backbone::check_length(int64_t num_tokens) const {
  if (limits_.max_tokens && num_tokens > *limits_.max_tokens) {
    throw UsageError(str_cat(
        "[forward] A sequence has ",
        num_tokens,
        " tokens, but the model has ",
        *limits_.max_tokens,
        " positions. Truncate the texts"));
  }
}

void Backbone::check(const ModelInputs& inputs, int64_t num_past) const {
  const auto& ids = inputs.input_ids;
  if (!ids.defined() || ids.dim() != 2 ||
      !at::isIntegralType(ids.scalar_type(), /*includeBool=*/false)) {
    throw UsageError(str_cat(
        "[forward] input_ids is ",
        ids.defined() ? str_cat(ids.scalar_type(), " of shape ", ids.sizes())
                      : "missing",
        ", expected integers of shape [batch, tokens]"));
  }
  const int64_t num_tokens = num_past + ids.size(1);
  if (inputs.packed_mask.defined()) {
    check_packed(inputs);
    check_length(inputs.packed_mask.size(1));
  } else {
    check_length(num_tokens);
  }
  const auto& mask = inputs.attention_mask;
  if (mask.defined() && (mask.dim() != 2 || mask.size(0) != ids.size(0) ||
                         mask.size(1) != num_tokens)) {
    throw UsageError(str_cat(
        "[forward] attention_mask has shape ",
        mask.sizes(),
        ", expected [",
        ids.size(0),
        ", ",
        num_tokens,
        "], one element per token"));
  }
  if (ids.is_cpu() && ids.numel() > 0) {
    const auto [low, high] = at::aminmax(ids);
    if (low.item<int64_t>() < 0 || high.item<int64_t>() >= limits_.vocab_size) {
      throw UsageError(str_cat(
          "[forward] input_ids range from ",
          low.item<int64_t>(),
          " to ",
          high.item<int64_t>(),
          ", expected 0 to ",
          limits_.vocab_size - 1,
          ". Use the tokenizer of this model"));
    }
  }
}

BackboneOutput Backbone::encode(
    const ModelInputs& inputs,
    const ForwardOptions& options,
    KeyValueCache* cache) {
  if (options.output_attentions && divided(word_embeddings())) {
    throw UsageError(
        "[forward] output_attentions is set, but each tensor-parallel rank has "
        "the attention weights of its own heads only. Turn it off, or use the "
        "model without tensor parallelism");
  }
  Pass pass;
  pass.cache = cache;
  pass.num_past = cache != nullptr ? cache->length() : 0;
  check(inputs, pass.num_past);
  BackboneOutput output;
  if (inputs.packed_mask.defined()) {
    output.packed = std::make_shared<const PackedRows>(
        inputs.packed_mask, inputs.input_ids.size(1));
    pass.mask = {.is_causal = limits_.is_causal, .packed = output.packed};
  }
  Hidden hidden = {embed(inputs, pass), {}};
  if (!output.packed) {
    pass.mask = make_mask(
        inputs.attention_mask,
        {.num_queries = hidden.x.size(1),
         .num_past = pass.num_past,
         .is_causal = limits_.is_causal,
         .as_bias = options.output_attentions},
        hidden.x.options());
  }
  // A block also returns attention weights and writes cache entries.
  // Recomputation would repeat these side effects.
  const bool recomputes = recomputes_activations() && is_training() &&
                          cache == nullptr && !options.output_attentions;
  pass.reads_ahead = !recomputes;
  for (const auto& block : blocks_) {
    if (options.output_hidden_states) {
      output.hidden_states.push_back(hidden.x);
    }
    at::Tensor weights;
    if (recomputes) {
      hidden.x = recompute(
          [block, pass](const at::Tensor& x) {
            return block->forward({x, {}}, pass, nullptr).x;
          },
          hidden.x);
      continue;
    }
    hidden = block->forward(
        hidden, pass, options.output_attentions ? &weights : nullptr);
    if (options.output_attentions) {
      output.attentions.push_back(weights);
    }
  }
  output.hidden_BTC = finish(hidden);
  if (options.output_hidden_states) {
    output.hidden_states.push_back(output.hidden_BTC);
  }
  output.pooled_BC = pool(output);
  return output;
}

ModelOutput Backbone::run(
    const ModelInputs& inputs,
    const ForwardOptions& options) {
  auto output = encode(inputs, options);
  const auto hidden_BTC = output.hidden_BTC;
  const auto pooled_BC = output.pooled_BC;
  ModelOutput result = answer(std::move(output));
  result.last_hidden_state = hidden_BTC;
  result.pooler_output = pooled_BC;
  return result;
}

SequenceClassifier::SequenceClassifier(
    const ModelConfig& config,
    const std::string& prefix,
    std::shared_ptr<Backbone> backbone)
    : PretrainedModel(config), prefix_(prefix), backbone_(std::move(backbone)) {
  register_module(prefix, backbone_);
}

TensorPlan SequenceClassifier::tensor_plan() const {
  return plan_of_part(prefix_, *backbone_);
}

ModelOutput SequenceClassifier::run(
    const ModelInputs& inputs,
    const ForwardOptions& options) {
  auto output = backbone_->encode(inputs, options);
  const auto logits_BL = classify(output, inputs);
  ModelOutput result = answer(std::move(output));
  result.logits = logits_BL;
  if (inputs.labels.defined()) {
    result.loss = classification_loss(
        logits_BL, inputs.labels, config().text("problem_type", ""));
  }
  return result;
}

LastTokenClassifier::LastTokenClassifier(
    const ModelConfig& config,
    const std::string& prefix,
    std::shared_ptr<Backbone> backbone)
    : SequenceClassifier(config, prefix, backbone),
      score_(register_module(
          "score",
          std::make_shared<Linear>(
              backbone->word_embeddings().size(1),
              config.num_labels(),
              /*with_bias=*/false))),
      padding_id_(config.integer("pad_token_id")) {}

at::Tensor LastTokenClassifier::classify(
    const BackboneOutput& output,
    const ModelInputs& inputs) {
  if (output.packed) {
    return (*score_)(output.packed->last(output.hidden_BTC));
  }
  const auto logits_BTL = (*score_)(output.hidden_BTC);
  const int64_t B = logits_BTL.size(0);
  if (!padding_id_) {
    if (B > 1) {
      throw UsageError(str_cat(
          "[forward] A batch of ",
          B,
          " sequences needs pad_token_id to find the last token of each "
          "sequence. Set it in the configuration"));
    }
    return logits_BTL.select(1, -1);
  }
  const auto& ids_BT = inputs.input_ids;
  const auto indices = at::arange(ids_BT.size(1), ids_BT.options());
  const auto last_B = (ids_BT.ne(*padding_id_) * indices).argmax(-1);
  return logits_BTL.index({at::arange(B, ids_BT.options()), last_B});
}

MaskedLanguageModel::MaskedLanguageModel(
    const ModelConfig& config,
    std::shared_ptr<Backbone> backbone,
    const Paths& paths,
    const Options& options)
    : PretrainedModel(config),
      paths_(paths),
      backbone_(std::move(backbone)),
      activation_(options.activation) {
  register_module(paths.backbone, backbone_);
  const int64_t V = backbone_->word_embeddings().size(0);
  const int64_t C = backbone_->word_embeddings().size(1);
  const std::string bias = paths.bias;
  if (options.is_tied || bias != paths.decoder) {
    bias_ = make_at<Bias>(*this, bias, V);
  }
  dense_ = make_at<Linear>(*this, paths.dense, C, C);
  norm_ = make_at<LayerNorm>(*this, paths.norm, C, options.layer_norm_eps);
  if (!options.is_tied) {
    decoder_ = make_at<Linear>(*this, paths.decoder, C, V);
  }
}

TensorPlan MaskedLanguageModel::tensor_plan() const {
  auto plan = plan_of_part(paths_.backbone, *backbone_);
  plan.push_back(
      {.modules = decoder_ ? paths_.decoder : paths_.bias,
       .split = TensorSplit::kVocabulary});
  return plan;
}

const at::Tensor& MaskedLanguageModel::vocabulary() const {
  return decoder_ ? decoder_->weight : backbone_->word_embeddings();
}

at::Tensor MaskedLanguageModel::predict(const at::Tensor& hidden_BTC) const {
  const auto x_BTC = (*norm_)(activation_((*dense_)(hidden_BTC)));
  return project_to_vocabulary(
      x_BTC, vocabulary(), decoder_ ? decoder_->bias : bias_->value);
}

ModelOutput MaskedLanguageModel::run(
    const ModelInputs& inputs,
    const ForwardOptions& options) {
  auto output = backbone_->encode(inputs, options);
  const auto logits_BTP = predict(output.hidden_BTC);
  const int64_t vocab_size = backbone_->limits().vocab_size;
  ModelOutput result = answer(std::move(output));
  fill_predictions(
      result,
      logits_BTP,
      vocabulary(),
      {inputs.labels, vocab_size, is_training()});
  return result;
}

CausalModel::CausalModel(
    const ModelConfig& config,
    const std::string& prefix,
    std::shared_ptr<Backbone> backbone,
    bool is_tied)
    : CausalLanguageModel(config),
      prefix_(prefix),
      backbone_(std::move(backbone)) {
  register_module(prefix, backbone_);
  if (!is_tied) {
    const auto& words_VC = backbone_->word_embeddings();
    head_ = register_module(
        "lm_head",
        std::make_shared<Linear>(
            words_VC.size(1), words_VC.size(0), /*with_bias=*/false));
  }
}

TensorPlan CausalModel::tensor_plan() const {
  auto plan = plan_of_part(prefix_, *backbone_);
  if (head_) {
    plan.push_back({.modules = "lm_head", .split = TensorSplit::kVocabulary});
  }
  return plan;
}

const at::Tensor& CausalModel::vocabulary() const {
  return head_ ? head_->weight : backbone_->word_embeddings();
}

at::Tensor CausalModel::predict(const at::Tensor& hidden_BTC) const {
  return project_to_vocabulary(hidden_BTC, vocabulary(), {});
}

ModelOutput CausalModel::run(
    const ModelInputs& inputs,
    const ForwardOptions& options) {
  auto output = backbone_->encode(inputs, options);
  const auto packed = output.packed;
  const auto logits_BTP = predict(output.hidden_BTC);
  const int64_t vocab_size = backbone_->limits().vocab_size;
  ModelOutput result = answer(std::move(output));
  const auto labels_BT = inputs.labels.defined()
                             ? next_labels(inputs.labels, packed.get())
                             : at::Tensor();
  fill_predictions(
      result, logits_BTP, vocabulary(), {labels_BT, vocab_size, is_training()});
  return result;
}

at::Tensor CausalModel::next_logits(
    const ModelInputs& inputs,
    KeyValueCache* cache) {
  const auto output = backbone_->encode(inputs, {}, cache);
  // Predict only for the last token, because the other logits of a prompt would
  // be discarded.
  const auto logits_BP =
      predict(output.hidden_BTC.narrow(1, -1, 1)).select(1, 0);
  const int64_t V = backbone_->limits().vocab_size;
  const auto info = divided(vocabulary());
  return info ? info->ranks->gather(logits_BP, V) : logits_BP.narrow(-1, 0, V);
}

} // namespace accelerate::models
