// SPDX-License-Identifier: Apache-2.0
// Text generation, token by token. Shapes: B batch, T tokens, V vocabulary.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <limits>
#include <memory>

#include "accelerate/error.h"
#include "accelerate/models.h"
#include "core/base/str.h"
#include "models/attention.h"
#include "training/parallel/shared_reads.h"
#include "training/parallel/tensor_ranks.h"

namespace accelerate::models {
namespace {

void check(const GenerateOptions& options) {
  const auto refuse = [](const char* name, auto value, const char* expected) {
    throw UsageError(
        str_cat("[generate] ", name, " is ", value, ", expected ", expected));
  };
  if (options.max_new_tokens < 1) {
    refuse("max_new_tokens", options.max_new_tokens, "at least 1");
  }
  if (options.do_sample && !(options.temperature > 0)) {
    refuse(
        "temperature",
        options.temperature,
        "a number above 0. Leave out do_sample to generate the most likely "
        "tokens");
  }
  if (options.do_sample && options.top_k < 0) {
    refuse("top_k", options.top_k, "a number of tokens, or 0 for all");
  }
  if (options.do_sample && !(options.top_p > 0 && options.top_p <= 1)) {
    refuse("top_p", options.top_p, "a probability above 0 and at most 1");
  }
}

constexpr double kNever = -std::numeric_limits<double>::infinity();

at::Tensor keep_top_k(const at::Tensor& scores_BV, int64_t k) {
  const auto kept = std::get<0>(scores_BV.topk(std::min(k, scores_BV.size(1))));
  return scores_BV.masked_fill(scores_BV < kept.narrow(1, -1, 1), kNever);
}

at::Tensor keep_top_p(const at::Tensor& scores_BV, double p) {
  const auto [sorted, order] = scores_BV.sort(/*dim=*/-1, /*descending=*/false);
  auto is_out = sorted.softmax(-1).cumsum(-1) <= 1 - p;
  is_out.narrow(1, -1, 1).fill_(false); // always keep the most likely token
  return scores_BV.masked_fill(is_out.scatter(1, order, is_out), kNever);
}

at::Tensor pick(at::Tensor scores_BV, const GenerateOptions& options) {
  if (!options.do_sample) {
    return scores_BV.argmax(-1);
  }
  scores_BV = scores_BV / options.temperature;
  if (options.top_k > 0) {
    scores_BV = keep_top_k(scores_BV, options.top_k);
  }
  if (options.top_p < 1) {
    scores_BV = keep_top_p(scores_BV, options.top_p);
  }
  return at::multinomial(
             scores_BV.softmax(-1), 1, /*replacement=*/false, options.generator)
      .squeeze(1);
}

} // namespace

/// The state of one call of `generate`.
class Generation {
 public:
  Generation(
      CausalLanguageModel& model,
      const ModelInputs& prompt,
      const GenerateOptions& options)
      : model_(model), options_(options), ids_BT_(prompt.input_ids) {
    if (!ids_BT_.defined() || ids_BT_.dim() != 2 || ids_BT_.size(1) == 0) {
      throw UsageError(
          "[generate] input_ids is missing or empty. Pass token ids of shape "
          "[batch, tokens]");
    }
    if (prompt.packed_mask.defined()) {
      throw UsageError(
          "[generate] Packed prompts are not supported. Pass one prompt per "
          "row, padded on the left, without pack()");
    }
    for (const auto& parameter : model.parameters()) {
      if (const auto info = divided(parameter)) {
        tensor_ranks_ = info->ranks;
        break;
      }
    }
    choose_special_tokens();
    choose_mask(prompt.attention_mask);
    const int64_t total = ids_BT_.size(1) + options.max_new_tokens;
    if (const auto limit = model.max_tokens(); limit && total > *limit) {
      throw UsageError(str_cat(
          "[generate] The prompt has ",
          ids_BT_.size(1),
          " tokens and max_new_tokens is ",
          options.max_new_tokens,
          ", but the model has ",
          *limit,
          " positions. Shorten the prompt or lower max_new_tokens"));
    }
    if (options.use_cache) {
      cache_ = std::make_unique<KeyValueCache>(model.num_layers(), total);
    }
  }

  /// If parameters are sharded, reading them is collective: a rank that has
  /// finished keeps computing tokens with the others until all have.
  at::Tensor run() {
    const SharedReads reads("generate", model_.parameters());
    is_done_B_ = at::zeros({ids_BT_.size(0)}, flags());
    int64_t num_left = options_.max_new_tokens;
    bool is_done = false;
    do {
      at::Tensor logits;
      reads.run([&] { logits = is_done ? unused_logits() : next_logits(); });
      if (!is_done) {
        add_token(logits);
        is_done = --num_left == 0 ||
                  (!stops_.empty() && is_done_B_.all().item<bool>());
      }
    } while (reads.is_on_any_rank(!is_done));
    return ids_BT_;
  }

 private:
  void add_token(const at::Tensor& logits) {
    auto next_B =
        pick(logits.to(at::toOpMathType(logits.scalar_type())), options_);
    if (tensor_ranks_ != nullptr) {
      tensor_ranks_->group().broadcast(next_B, 0);
    }
    if (!stops_.empty()) {
      next_B = at::where(is_done_B_, at::full_like(next_B, padding_), next_B);
    }
    append(next_B);
    for (const int64_t stop : stops_) {
      is_done_B_ = is_done_B_.logical_or(next_B == stop);
    }
  }

  /// Logits that are not used, computed for the smallest possible input.
  at::Tensor unused_logits() {
    return model_.next_logits(
        {.input_ids = at::zeros({1, 1}, ids_BT_.options())}, nullptr);
  }

  at::TensorOptions flags() const { return ids_BT_.options().dtype(at::kBool); }

  void choose_special_tokens() {
    const auto& config = model_.config();
    const std::string& text = model_.generation_config_;
    const auto own = ModelConfig::parse(
        text.empty() ? "{}" : text, "generation_config.json");
    stops_ = own.integers("eos_token_id");
    if (stops_.empty()) {
      stops_ = config.integers("eos_token_id");
    }
    stops_ = options_.eos_token_ids.value_or(stops_);
    auto padding = options_.pad_token_id;
    for (const auto* source : {&own, &config}) {
      padding = padding ? padding : source->integer("pad_token_id");
    }
    has_padding_token_ = padding.has_value();
    padding_ = padding.value_or(stops_.empty() ? 0 : stops_.front());
  }

  void choose_mask(at::Tensor mask_BT) {
    const bool is_stop =
        std::find(stops_.begin(), stops_.end(), padding_) != stops_.end();
    if (!mask_BT.defined() && has_padding_token_ && !is_stop) {
      mask_BT = ids_BT_ != padding_;
    }
    if (!mask_BT.defined() || mask_BT.ne(0).all().item<bool>()) {
      return;
    }
    if (mask_BT.sizes() != ids_BT_.sizes()) {
      throw UsageError(str_cat(
          "[generate] attention_mask has shape ",
          mask_BT.sizes(),
          ", but input_ids has shape ",
          ids_BT_.sizes()));
    }
    if (mask_BT.select(1, -1).eq(0).any().item<bool>()) {
      throw UsageError(
          "[generate] A prompt ends with padding, so its continuation would "
          "follow the padding. Pad on the left");
    }
    mask_BT_ = mask_BT.to(at::kLong);
  }

  at::Tensor next_logits() {
    ModelInputs inputs{.input_ids = ids_BT_, .attention_mask = mask_BT_};
    if (mask_BT_.defined()) {
      inputs.position_ids = (mask_BT_.cumsum(1) - 1).clamp_min(0);
    }
    if (cache_ && cache_->length() > 0) {
      inputs.input_ids = ids_BT_.narrow(1, -1, 1);
      if (mask_BT_.defined()) {
        inputs.position_ids = inputs.position_ids.narrow(1, -1, 1);
      }
    }
    return model_.next_logits(inputs, cache_.get());
  }

  void append(const at::Tensor& next_B) {
    ids_BT_ = at::cat({ids_BT_, next_B.unsqueeze(1)}, 1);
    if (mask_BT_.defined()) {
      mask_BT_ = at::constant_pad_nd(mask_BT_, {0, 1}, 1);
    }
  }

  CausalLanguageModel& model_;
  const GenerateOptions& options_;
  at::Tensor ids_BT_;
  /// Undefined if nothing is padded.
  at::Tensor mask_BT_;
  at::Tensor is_done_B_;
  std::vector<int64_t> stops_;
  bool has_padding_token_ = false;
  int64_t padding_ = 0;
  std::unique_ptr<KeyValueCache> cache_;
  /// The ranks that compute this batch together; null if there are none. Their
  /// generators may differ.
  std::shared_ptr<TensorRanks> tensor_ranks_;
};

at::Tensor CausalLanguageModel::generate(
    const ModelInputs& prompt,
    const GenerateOptions& options) {
  check(options);
  const at::NoGradGuard no_grad;
  return Generation(*this, prompt, options).run();
}

} // namespace accelerate::models
