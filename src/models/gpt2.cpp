// SPDX-License-Identifier: Apache-2.0
// GPT-2 (`model_type` "gpt2").
#include <ATen/ATen.h>

#include <cmath>

#include "core/base/str.h"
#include "models/architecture.h"
#include "models/backbone.h"

namespace accelerate::models {
namespace {

/// Transformers' names and defaults.
struct Gpt2Config {
  explicit Gpt2Config(const ModelConfig& config)
      : vocab_size(config.size("vocab_size", 50257)),
        n_positions(config.size("n_positions", 1024)),
        n_embd(config.size("n_embd", 768)),
        n_layer(config.size("n_layer", 12)),
        n_head(config.size("n_head", 12)),
        n_inner(config.size("n_inner", 4 * n_embd)),
        activation_function(
            read_activation(config, "activation_function", "gelu_new")),
        resid_pdrop(config.number("resid_pdrop", 0.1)),
        embd_pdrop(config.number("embd_pdrop", 0.1)),
        attn_pdrop(config.number("attn_pdrop", 0.1)),
        layer_norm_epsilon(config.number("layer_norm_epsilon", 1e-5)),
        scale_attn_weights(config.boolean("scale_attn_weights", true)),
        scale_attn_by_inverse_layer_idx(
            config.boolean("scale_attn_by_inverse_layer_idx", false)),
        tie_word_embeddings(config.boolean("tie_word_embeddings", true)) {
    check_heads(config, n_embd, n_head);
    if (config.boolean("add_cross_attention", false)) {
      config.refuse(
          "'add_cross_attention' is true, but cross-attention is not "
          "supported");
    }
  }

  double attention_scale(int64_t layer) const {
    const double scale =
        scale_attn_weights
            ? std::pow(static_cast<double>(n_embd / n_head), -0.5)
            : 1.0;
    return scale_attn_by_inverse_layer_idx
               ? scale / static_cast<double>(layer + 1)
               : scale;
  }

  int64_t vocab_size;
  int64_t n_positions;
  int64_t n_embd;
  int64_t n_layer;
  int64_t n_head;
  int64_t n_inner;
  Activation activation_function;
  double resid_pdrop;
  double embd_pdrop;
  double attn_pdrop;
  double layer_norm_epsilon;
  bool scale_attn_weights;
  bool scale_attn_by_inverse_layer_idx;
  bool tie_word_embeddings;
};

class Gpt2Block final : public Block {
 public:
  Gpt2Block(const Gpt2Config& config, int64_t layer)
      : config_(config), layer_(layer) {
    const int64_t C = config.n_embd;
    const double epsilon = config.layer_norm_epsilon;
    // Each block adds two branches to the residual. This factor keeps the
    // variance of the sum constant with depth.
    const double residual =
        1.0 / std::sqrt(2.0 * static_cast<double>(config.n_layer));
    norm1_ = make_at<LayerNorm>(*this, "ln_1", C, epsilon);
    qkv_ = make_at<Conv1D>(*this, "attn.c_attn", C, 3 * C);
    out_ = make_at<Conv1D>(*this, "attn.c_proj", C, C, residual);
    norm2_ = make_at<LayerNorm>(*this, "ln_2", C, epsilon);
    up_ = make_at<Conv1D>(*this, "mlp.c_fc", C, config.n_inner);
    down_ = make_at<Conv1D>(*this, "mlp.c_proj", config.n_inner, C, residual);
  }

  const std::shared_ptr<LayerNorm>& first_norm() const { return norm1_; }
  /// Sets the norm after this block: the next block's first norm, or the last
  /// norm.
  void lead_to(std::shared_ptr<LayerNorm> norm) {
    next_norm_ = std::move(norm);
  }

  Hidden forward(const Hidden& hidden, const Pass& pass, at::Tensor* weights)
      override {
    const int64_t D = config_.n_embd / config_.n_head;
    const auto read_BTC =
        hidden.read.defined() ? hidden.read : (*norm1_)(hidden.x);
    const auto projections = (*qkv_)(read_BTC).chunk(3, 2);
    auto keys_BHSD = split_heads(projections[1], D);
    auto values_BHSD = split_heads(projections[2], D);
    if (pass.cache != nullptr) {
      std::tie(keys_BHSD, values_BHSD) =
          pass.cache->append(layer_, keys_BHSD, values_BHSD);
    }
    const auto context_BTC = attend(
        split_heads(projections[0], D),
        keys_BHSD,
        values_BHSD,
        pass.mask,
        {.scale = config_.attention_scale(layer_),
         .dropout = is_training() ? config_.attn_pdrop : 0.0,
         .weights = weights});
    const double dropout = is_training() ? config_.resid_pdrop : 0.0;
    const auto [a_BTC, normed_BTC] =
        add_and_norm(hidden.x, branch_of(*out_, context_BTC), dropout, *norm2_);
    const auto branch =
        branch_of(*up_, config_.activation_function, *down_, normed_BTC);
    if (!pass.reads_ahead) {
      return {add(a_BTC, branch, dropout), {}};
    }
    const auto [x_BTC, next_BTC] =
        add_and_norm(a_BTC, branch, dropout, *next_norm_);
    return {x_BTC, next_BTC};
  }

 private:
  Gpt2Config config_;
  int64_t layer_;
  std::shared_ptr<LayerNorm> norm1_, norm2_;
  /// Not registered as a submodule, because another module owns it.
  std::shared_ptr<LayerNorm> next_norm_;
  std::shared_ptr<Conv1D> qkv_, out_, up_, down_;
};

class Gpt2Model final : public Backbone {
 public:
  Gpt2Model(const ModelConfig& model_config, const Gpt2Config& config)
      : Backbone(
            model_config,
            {.vocab_size = config.vocab_size,
             .max_tokens = config.n_positions,
             .is_causal = true}),
        num_heads_(config.n_head),
        dropout_(config.embd_pdrop) {
    const int64_t C = config.n_embd;
    words_ = make_at<Embedding>(*this, "wte", config.vocab_size, C);
    positions_ = make_at<Embedding>(*this, "wpe", config.n_positions, C);
    std::vector<std::shared_ptr<Gpt2Block>> blocks;
    for (int64_t i = 0; i < config.n_layer; ++i) {
      blocks.push_back(std::make_shared<Gpt2Block>(config, i));
      add_block(str_cat("h.", i), blocks.back());
    }
    norm_ = make_at<LayerNorm>(*this, "ln_f", C, config.layer_norm_epsilon);
    lead_to_next(blocks, norm_);
  }

  const at::Tensor& word_embeddings() const override { return words_->weight; }
  TensorPlan tensor_plan() const override {
    using enum TensorSplit;
    return {
        {.modules = "wte", .split = kVocabulary},
        {.modules = "h.*.attn.c_attn",
         .split = kColumns,
         .num_units = num_heads_,
         .num_fused = 3,
         .is_transposed = true},
        {.modules = "h.*.attn.c_proj",
         .split = kRows,
         .num_units = num_heads_,
         .is_transposed = true},
        {.modules = "h.*.mlp.c_fc", .split = kColumns, .is_transposed = true},
        {.modules = "h.*.mlp.c_proj", .split = kRows, .is_transposed = true}};
  }

 private:
  at::Tensor embed(const ModelInputs& inputs, Pass& pass) override {
    auto x_BTC =
        (*words_)(inputs.input_ids) + (*positions_)(positions(inputs, pass));
    if (inputs.token_type_ids.defined()) {
      x_BTC = x_BTC + (*words_)(inputs.token_type_ids);
    }
    return apply_dropout(x_BTC, dropout_, is_training());
  }
  at::Tensor finish(const Hidden& hidden) override {
    return hidden.read.defined() ? hidden.read : (*norm_)(hidden.x);
  }

  int64_t num_heads_;
  double dropout_;
  std::shared_ptr<Embedding> words_, positions_;
  std::shared_ptr<LayerNorm> norm_;
};

std::shared_ptr<Gpt2Model> make_gpt2_backbone(const ModelConfig& config) {
  return std::make_shared<Gpt2Model>(config, Gpt2Config(config));
}

std::shared_ptr<PretrainedModel> make_gpt2_base(const ModelConfig& config) {
  return make_gpt2_backbone(config);
}

std::shared_ptr<PretrainedModel> make_gpt2_classifier(
    const ModelConfig& config) {
  return std::make_shared<LastTokenClassifier>(
      config, "transformer", make_gpt2_backbone(config));
}

std::shared_ptr<PretrainedModel> make_gpt2_causal_lm(
    const ModelConfig& config) {
  return std::make_shared<CausalModel>(
      config,
      "transformer",
      make_gpt2_backbone(config),
      Gpt2Config(config).tie_word_embeddings);
}

} // namespace

const Architecture& gpt2_architecture() {
  static const Architecture architecture = {
      .model_type = "gpt2",
      .base_prefix = "transformer",
      .is_tied_by_default = true,
      .variants =
          {{.task = Task::kBase,
            .class_name = "GPT2Model",
            .make = make_gpt2_base},
           {.task = Task::kSequenceClassification,
            .class_name = "GPT2ForSequenceClassification",
            .make = make_gpt2_classifier},
           {.task = Task::kCausalLM,
            .class_name = "GPT2LMHeadModel",
            .make = make_gpt2_causal_lm,
            .tied = {{"lm_head.weight", "transformer.wte.weight"}}}},
      .ignored_endings = {".attn.bias", ".attn.masked_bias"}};
  return architecture;
}

} // namespace accelerate::models
