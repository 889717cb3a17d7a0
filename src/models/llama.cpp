// SPDX-License-Identifier: Apache-2.0
// Llama 1 to 3.x (`model_type` "llama"): rotary positions, grouped heads,
// RMSNorm.
#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "core/base/str.h"
#include "models/architecture.h"
#include "models/backbone.h"

namespace accelerate::models {
namespace {

/// Transformers' names and defaults.
struct LlamaConfig {
  explicit LlamaConfig(const ModelConfig& config)
      : vocab_size(config.size("vocab_size", 32000)),
        hidden_size(config.size("hidden_size", 4096)),
        intermediate_size(config.size("intermediate_size", 11008)),
        num_hidden_layers(config.size("num_hidden_layers", 32)),
        num_attention_heads(config.size("num_attention_heads", 32)),
        num_key_value_heads(
            config.size("num_key_value_heads", num_attention_heads)),
        head_dim(config.size("head_dim", hidden_size / num_attention_heads)),
        hidden_act(read_activation(config, "hidden_act", "silu")),
        rms_norm_eps(config.number("rms_norm_eps", 1e-6)),
        attention_bias(config.boolean("attention_bias", false)),
        mlp_bias(config.boolean("mlp_bias", false)),
        attention_dropout(config.number("attention_dropout", 0.0)),
        pad_token_id(config.integer("pad_token_id")),
        tie_word_embeddings(config.boolean("tie_word_embeddings", false)) {
    check_heads(config, hidden_size, num_attention_heads);
    if (num_attention_heads % num_key_value_heads != 0) {
      config.refuse(str_cat(
          "'num_attention_heads' is ",
          num_attention_heads,
          ", but it must be a multiple of 'num_key_value_heads', ",
          num_key_value_heads));
    }
  }

  int64_t vocab_size;
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t num_hidden_layers;
  int64_t num_attention_heads;
  int64_t num_key_value_heads;
  int64_t head_dim;
  Activation hidden_act;
  double rms_norm_eps;
  bool attention_bias;
  bool mlp_bias;
  double attention_dropout;
  std::optional<int64_t> pad_token_id;
  bool tie_word_embeddings;
};

// Llama 3.1 and later: long wavelengths are stretched by `factor`, short ones
// are kept, and those in between are interpolated.
at::Tensor stretch_llama3(
    const at::Tensor& frequencies,
    const ModelConfig& rope,
    int64_t max_positions) {
  const double factor = rope.number("factor", 8.0);
  const double low = rope.number("low_freq_factor", 1.0);
  const double high = rope.number("high_freq_factor", 4.0);
  const auto context = static_cast<double>(
      rope.size("original_max_position_embeddings", max_positions));
  const auto waves = 2 * std::numbers::pi / frequencies;
  const auto mix = (context / waves - low) / (high - low);
  const auto mixed = (1 - mix) * frequencies / factor + mix * frequencies;
  const auto stretched =
      at::where(waves > context / low, frequencies / factor, frequencies);
  const auto is_between =
      (waves >= context / high).logical_and(waves <= context / low);
  return at::where(is_between, mixed, stretched);
}

// Radians per position, D / 2 of them. Newer files have `rope_parameters`,
// older ones `rope_theta` and `rope_scaling`.
at::Tensor rotary_frequencies(const ModelConfig& config, int64_t head_dim) {
  const auto rope = config.section(
      config.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  const double theta =
      rope.number("rope_theta", config.number("rope_theta", 10000.0));
  // The explicit device makes torch allocate the tensor even inside
  // `EmptyWeights`.
  const auto exponents =
      at::arange(0, head_dim, 2, at::device(at::kCPU).dtype(at::kFloat)) /
      static_cast<double>(head_dim);
  const auto frequencies = 1.0 / at::pow(at::Scalar(theta), exponents);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "default") {
    return frequencies;
  }
  if (type == "linear") {
    return frequencies / rope.number("factor", 1.0);
  }
  if (type == "llama3") {
    return stretch_llama3(
        frequencies, rope, config.size("max_position_embeddings", 2048));
  }
  config.refuse(str_cat(
      "The rope type '",
      type,
      "' is not supported. Supported types: default, linear, llama3"));
}

/// Reshapes B x T x C to heads B x H x T x D and rotates them to their
/// positions.
at::Tensor rotated_heads(
    const at::Tensor& x_BTC,
    int64_t head_channels,
    const Pass& pass) {
  if (pass.is_fused) {
    const auto x_BTHD =
        x_BTC.view({x_BTC.size(0), x_BTC.size(1), -1, head_channels});
    return kernels::rotate(x_BTHD, pass.cos, pass.sin).transpose(1, 2);
  }
  const auto x_BHTD = split_heads(x_BTC, head_channels);
  const auto halves = x_BHTD.chunk(2, -1);
  return x_BHTD * pass.cos + at::cat({-halves[1], halves[0]}, -1) * pass.sin;
}

class LlamaBlock final : public Block {
 public:
  LlamaBlock(const LlamaConfig& config, int64_t layer)
      : config_(config), layer_(layer) {
    const int64_t C = config.hidden_size;
    const int64_t I = config.intermediate_size;
    const int64_t Q = config.num_attention_heads * config.head_dim;
    const int64_t K = config.num_key_value_heads * config.head_dim;
    const bool bias = config.attention_bias;
    query_ = make_at<Linear>(*this, "self_attn.q_proj", C, Q, bias);
    key_ = make_at<Linear>(*this, "self_attn.k_proj", C, K, bias);
    value_ = make_at<Linear>(*this, "self_attn.v_proj", C, K, bias);
    out_ = make_at<Linear>(*this, "self_attn.o_proj", Q, C, bias);
    gate_ = make_at<Linear>(*this, "mlp.gate_proj", C, I, config.mlp_bias);
    up_ = make_at<Linear>(*this, "mlp.up_proj", C, I, config.mlp_bias);
    down_ = make_at<Linear>(*this, "mlp.down_proj", I, C, config.mlp_bias);
    norm1_ = make_at<RmsNorm>(*this, "input_layernorm", C, config.rms_norm_eps);
    norm2_ = make_at<RmsNorm>(
        *this, "post_attention_layernorm", C, config.rms_norm_eps);
  }

  const std::shared_ptr<RmsNorm>& first_norm() const { return norm1_; }
  /// Sets the norm after this block: the next block's first norm, or the last
  /// norm.
  void lead_to(std::shared_ptr<RmsNorm> norm) { next_norm_ = std::move(norm); }

  Hidden forward(const Hidden& hidden, const Pass& pass, at::Tensor* weights)
      override {
    const int64_t D = config_.head_dim;
    const auto normed_BTC =
        hidden.read.defined() ? hidden.read : (*norm1_)(hidden.x);
    auto keys_BHSD = rotated_heads((*key_)(normed_BTC), D, pass);
    auto values_BHSD = split_heads((*value_)(normed_BTC), D);
    if (pass.cache != nullptr) {
      std::tie(keys_BHSD, values_BHSD) =
          pass.cache->append(layer_, keys_BHSD, values_BHSD);
    }
    const auto context_BTQ = attend(
        rotated_heads((*query_)(normed_BTC), D, pass),
        keys_BHSD,
        values_BHSD,
        pass.mask,
        {.scale = std::pow(static_cast<double>(D), -0.5),
         .dropout = is_training() ? config_.attention_dropout : 0.0,
         .weights = weights});
    const auto [a_BTC, b_BTC] =
        add_and_norm(hidden.x, (*out_)(context_BTQ), *norm2_);
    const auto branch_BTC =
        (*down_)(gated(config_.hidden_act, (*gate_)(b_BTC), (*up_)(b_BTC)));
    if (!pass.reads_ahead) {
      return {a_BTC + branch_BTC, {}};
    }
    const auto [x_BTC, next_BTC] = add_and_norm(a_BTC, branch_BTC, *next_norm_);
    return {x_BTC, next_BTC};
  }

 private:
  LlamaConfig config_;
  int64_t layer_;
  std::shared_ptr<Linear> query_, key_, value_, out_, gate_, up_, down_;
  std::shared_ptr<RmsNorm> norm1_, norm2_;
  /// Not registered as a submodule, because another module owns it.
  std::shared_ptr<RmsNorm> next_norm_;
};

class LlamaModel final : public Backbone {
 public:
  LlamaModel(const ModelConfig& model_config, const LlamaConfig& config)
      : Backbone(
            model_config,
            {.vocab_size = config.vocab_size, .is_causal = true}),
        num_heads_(config.num_attention_heads),
        num_key_heads_(config.num_key_value_heads),
        frequencies_(rotary_frequencies(model_config, config.head_dim)) {
    const int64_t C = config.hidden_size;
    words_ = make_at<Embedding>(
        *this, "embed_tokens", config.vocab_size, C, config.pad_token_id);
    std::vector<std::shared_ptr<LlamaBlock>> blocks;
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      blocks.push_back(std::make_shared<LlamaBlock>(config, i));
      add_block(str_cat("layers.", i), blocks.back());
    }
    norm_ = make_at<RmsNorm>(*this, "norm", C, config.rms_norm_eps);
    lead_to_next(blocks, norm_);
  }

  const at::Tensor& word_embeddings() const override { return words_->weight; }
  TensorPlan tensor_plan() const override {
    using enum TensorSplit;
    const std::string attention = "layers.*.self_attn.";
    return {
        {.modules = "embed_tokens", .split = kVocabulary},
        {attention + "q_proj", kColumns, num_heads_},
        {attention + "k_proj", kColumns, num_key_heads_},
        {attention + "v_proj", kColumns, num_key_heads_},
        {attention + "o_proj", kRows, num_heads_},
        {.modules = "layers.*.mlp.gate_proj", .split = kColumns},
        {.modules = "layers.*.mlp.up_proj", .split = kColumns},
        {.modules = "layers.*.mlp.down_proj", .split = kRows}};
  }

 private:
  at::Tensor embed(const ModelInputs& inputs, Pass& pass) override {
    const auto x_BTC = (*words_)(inputs.input_ids);
    // The frequencies are not a buffer, because moving the model to bfloat16
    // must not round them.
    frequencies_ = frequencies_.to(x_BTC.device());
    const auto positions_BT = positions(inputs, pass).to(at::kFloat);
    const auto half = positions_BT.unsqueeze(-1) * frequencies_;
    pass.is_fused = is_fused(x_BTC, words_->weight);
    if (pass.is_fused) {
      pass.cos = half.cos();
      pass.sin = half.sin();
      return x_BTC;
    }
    const auto angles_B1TD = at::cat({half, half}, -1).unsqueeze(1);
    pass.cos = angles_B1TD.cos().to(x_BTC.scalar_type());
    pass.sin = angles_B1TD.sin().to(x_BTC.scalar_type());
    return x_BTC;
  }
  at::Tensor finish(const Hidden& hidden) override {
    return hidden.read.defined() ? hidden.read : (*norm_)(hidden.x);
  }

  int64_t num_heads_;
  int64_t num_key_heads_;
  at::Tensor frequencies_;
  std::shared_ptr<Embedding> words_;
  std::shared_ptr<RmsNorm> norm_;
};

std::shared_ptr<LlamaModel> make_llama_backbone(const ModelConfig& config) {
  return std::make_shared<LlamaModel>(config, LlamaConfig(config));
}

std::shared_ptr<PretrainedModel> make_llama_base(const ModelConfig& config) {
  return make_llama_backbone(config);
}

std::shared_ptr<PretrainedModel> make_llama_classifier(
    const ModelConfig& config) {
  return std::make_shared<LastTokenClassifier>(
      config, "model", make_llama_backbone(config));
}

std::shared_ptr<PretrainedModel> make_llama_causal_lm(
    const ModelConfig& config) {
  return std::make_shared<CausalModel>(
      config,
      "model",
      make_llama_backbone(config),
      LlamaConfig(config).tie_word_embeddings);
}

} // namespace

const Architecture& llama_architecture() {
  static const Architecture architecture = {
      .model_type = "llama",
      .base_prefix = "model",
      .is_tied_by_default = false,
      .variants =
          {{.task = Task::kBase,
            .class_name = "LlamaModel",
            .make = make_llama_base},
           {.task = Task::kSequenceClassification,
            .class_name = "LlamaForSequenceClassification",
            .make = make_llama_classifier},
           {.task = Task::kCausalLM,
            .class_name = "LlamaForCausalLM",
            .make = make_llama_causal_lm,
            .tied = {{"lm_head.weight", "model.embed_tokens.weight"}}}},
      .ignored_endings = {"rotary_emb.inv_freq"}};
  return architecture;
}

} // namespace accelerate::models
