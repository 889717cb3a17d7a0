// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences padded to T tokens.
#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "accelerate/models/packing.h"
#include "core/base/str.h"

namespace accelerate::models {
namespace {

constexpr int64_t kNoLabel = -100;

bool is_whole(const at::Tensor& values) {
  return at::isIntegralType(values.scalar_type(), /*includeBool=*/false);
}

void check_padded(const ModelInputs& padded) {
  const auto& ids = padded.input_ids;
  if (!ids.defined() || ids.dim() != 2 || ids.numel() == 0) {
    throw UsageError(str_cat(
        "[pack] input_ids is ",
        ids.defined() ? str_cat("of shape ", ids.sizes()) : "missing",
        ", expected token ids of shape [batch, tokens]"));
  }
  if (padded.packed_mask.defined()) {
    throw UsageError(
        "[pack] The batch is already packed. Call pack() once, on a padded "
        "batch");
  }
  const auto names = field_names(padded);
  size_t index = 0;
  const auto check = [&](const at::Tensor& field) {
    const char* name = names[index++];
    if (!field.defined()) {
      return;
    }
    if (!field.is_cpu()) {
      throw UsageError(str_cat(
          "[pack] ",
          name,
          " is on ",
          field.device(),
          ", but pack() works only on the CPU. Call pack() in the loader's "
          "collate function"));
    }
    const bool is_label = &field == &padded.labels;
    const bool fits = is_label ? field.dim() > 0 && field.size(0) == ids.size(0)
                               : field.sizes() == ids.sizes();
    if (!fits) {
      throw UsageError(str_cat(
          "[pack] ",
          name,
          " has shape ",
          field.sizes(),
          is_label ? ", expected a first dimension of "
                   : ", expected the shape of input_ids, ",
          is_label ? ids.sizes().slice(0, 1) : ids.sizes()));
    }
  };
  std::apply(
      [&](const auto&... fields) { (check(fields), ...); },
      tensor_fields(const_cast<ModelInputs&>(padded)));
}

/// Returns `given`, or `needed` if `given` is 0. Throws if `needed` is larger.
int64_t size_of(const char* name, int64_t given, int64_t needed) {
  if (given != 0 && needed > given) {
    throw UsageError(str_cat(
        "[pack] The batch needs ",
        name,
        " = ",
        needed,
        ", but the options have ",
        given,
        ". Use fewer or shorter sequences"));
  }
  return given != 0 ? given : needed;
}

/// The mask with rows of ones followed by zeros.
at::Tensor mask_of(const at::Tensor& lengths, int64_t width) {
  return at::arange(width).lt(lengths.unsqueeze(1)).to(at::kLong);
}

} // namespace

ModelInputs pack(const ModelInputs& padded, const PackOptions& options) {
  check_padded(padded);
  const auto& ids_BT = padded.input_ids;
  const int64_t B = ids_BT.size(0);
  const auto is_token_BT = padded.attention_mask.defined()
                               ? padded.attention_mask.ne(0)
                               : at::ones(ids_BT.sizes(), at::kBool);
  const auto lengths_B = is_token_BT.sum(1);
  if (!lengths_B.all().item<bool>()) {
    throw UsageError(str_cat(
        "[pack] Row ",
        lengths_B.argmin().item<int64_t>(),
        " of attention_mask has no token. Leave empty sequences out"));
  }
  const int64_t num_real = lengths_B.sum().item<int64_t>();
  const int64_t num_tokens =
      size_of("num_tokens", options.num_tokens, num_real);
  const int64_t max_length = size_of(
      "max_length", options.max_length, lengths_B.max().item<int64_t>());
  // The row is padded with sequences of maximum length, and one with the rest.
  const int64_t num_missing = num_tokens - num_real;
  const int64_t num_fillers = (num_missing + max_length - 1) / max_length;
  const int64_t num_sequences =
      size_of("num_sequences", options.num_sequences, B + num_fillers);
  const auto fillers =
      (num_missing - at::arange(num_sequences - B) * max_length)
          .clamp(0, max_length);

  const auto pack_tokens = [&](const at::Tensor& values_BT, int64_t filling) {
    return values_BT.defined() ? at::constant_pad_nd(
                                     values_BT.masked_select(is_token_BT),
                                     {0, num_missing},
                                     filling)
                                     .unsqueeze(0)
                               : values_BT;
  };
  ModelInputs packed{
      .input_ids = pack_tokens(ids_BT, 0),
      .token_type_ids = pack_tokens(padded.token_type_ids, 0),
      .position_ids = pack_tokens(padded.position_ids, 0),
      .packed_mask = mask_of(at::cat({lengths_B, fillers}), max_length),
      .labels = padded.labels};
  const auto& labels = padded.labels;
  if (!labels.defined()) {
    return packed;
  }
  if (labels.sizes() == ids_BT.sizes() && is_whole(labels)) {
    packed.labels = pack_tokens(labels, kNoLabel);
  } else if (num_sequences > B) {
    if (!is_whole(labels)) {
      throw UsageError(str_cat(
          "[pack] Labels of type ",
          labels.scalar_type(),
          " cannot be padded. Use class labels, or leave num_tokens and "
          "num_sequences out"));
    }
    auto shape = labels.sizes().vec();
    shape[0] = num_sequences - B;
    packed.labels =
        at::cat({labels, at::full(shape, kNoLabel, labels.options())});
  }
  return packed;
}

} // namespace accelerate::models
