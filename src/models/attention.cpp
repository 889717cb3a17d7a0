// SPDX-License-Identifier: Apache-2.0
#include "models/attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/SDPBackend.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "accelerate/training/kernels.h"

namespace accelerate::models {
namespace {

at::Tensor repeat_heads(const at::Tensor& x_BHSD, int64_t times) {
  const auto B = x_BHSD.size(0);
  const auto H = x_BHSD.size(1);
  const auto S = x_BHSD.size(2);
  const auto D = x_BHSD.size(3);
  return x_BHSD.unsqueeze(2)
      .expand({B, H, times, S, D})
      .reshape({B, H * times, S, D});
}

// Whether nothing is padded, as far as this is known without waiting.
bool is_known_full(const at::Tensor& padding) {
  return !padding.defined() ||
         (padding.is_cpu() && padding.ne(0).all().item<bool>());
}

// During its lifetime, torch tries cuDNN first for attention, instead of flash
// attention. Measured on an H200: docs/performance.md.
class PreferCudnn {
 public:
  PreferCudnn() : order_(at::globalContext().sDPPriorityOrder()) {
    auto preferred = order_;
    std::stable_partition(
        preferred.begin(), preferred.end(), [](at::SDPBackend backend) {
          return backend == at::SDPBackend::cudnn_attention;
        });
    set(preferred);
  }
  ~PreferCudnn() { set(order_); }
  PreferCudnn(const PreferCudnn&) = delete;
  PreferCudnn& operator=(const PreferCudnn&) = delete;

 private:
  using Order = std::array<at::SDPBackend, at::num_sdp_backends>;
  static void set(const Order& order) {
    std::vector<int64_t> numbers;
    for (const auto backend : order) {
      numbers.push_back(static_cast<int64_t>(backend));
    }
    at::globalContext().setSDPPriorityOrder(numbers);
  }
  Order order_;
};

// Flash attention and similar kernels are faster for short sequences and
// biases. cuDNN creates a plan per shape, which pays off if shapes recur, as in
// training.
bool is_for_cudnn(const at::Tensor& queries_BHTD, const AttentionMask& mask) {
  constexpr int64_t kMinTokens = 512;
  return !queries_BHTD.is_cpu() && queries_BHTD.requires_grad() &&
         !mask.bias.defined() && queries_BHTD.size(2) >= kMinTokens;
}

at::Tensor attend_packed(
    const at::Tensor& queries_1HTD,
    const at::Tensor& keys_1HTD,
    const at::Tensor& values_1HTD,
    const AttentionMask& mask,
    const AttentionOptions& options) {
  const PackedRows& packed = *mask.packed;
  const int64_t L = packed.max_length();
  if (options.weights == nullptr) {
    const auto rows = [](const at::Tensor& x_1HTD) {
      return x_1HTD.select(0, 0).transpose(0, 1);
    };
    const auto context_THD = kernels::packed_attention(
        rows(queries_1HTD),
        rows(keys_1HTD),
        rows(values_1HTD),
        packed.starts(),
        L,
        {.is_causal = mask.is_causal,
         .dropout = options.dropout,
         .scale = options.scale});
    return context_THD.flatten(1).unsqueeze(0);
  }
  const auto padded_mask = make_mask(
      packed.mask_SL(),
      {.num_queries = L, .is_causal = mask.is_causal, .as_bias = true},
      queries_1HTD.options());
  return packed.unpad(attend(
      packed.pad(queries_1HTD),
      packed.pad(keys_1HTD),
      packed.pad(values_1HTD),
      padded_mask,
      options));
}

} // namespace

AttentionMask make_mask(
    const at::Tensor& padding,
    const MaskShape& shape,
    const at::TensorOptions& options) {
  const int64_t T = shape.num_queries;
  const int64_t S = shape.num_past + T;
  const bool is_full = is_known_full(padding);
  // A single new token may attend to everything before it.
  const bool is_causal = shape.is_causal && T > 1;
  if (is_full && !is_causal) {
    return {};
  }
  if (is_full && shape.num_past == 0 && !shape.as_bias) {
    return {.is_causal = true};
  }
  at::Tensor hidden; // where attention is masked
  if (!is_full) {
    hidden = padding.eq(0).view({padding.size(0), 1, 1, S});
  }
  if (is_causal) {
    const auto flags = options.dtype(at::kBool);
    const auto future =
        at::ones({T, S}, flags).triu(shape.num_past + 1).view({1, 1, T, S});
    hidden = hidden.defined() ? hidden.logical_or(future) : future;
  }
  // For a token that attends to nothing, the fused operator returns zeros.
  // `attend`'s separate steps would return NaN for minus infinity, so use
  // float16's lowest finite number.
  const double closed =
      shape.as_bias ? -65504.0 : -std::numeric_limits<double>::infinity();
  return {
      .bias = at::zeros(hidden.sizes(), options).masked_fill_(hidden, closed)};
}

KeyValueCache::KeyValueCache(int64_t num_layers, int64_t capacity)
    : capacity_(capacity),
      keys_(static_cast<size_t>(num_layers)),
      values_(static_cast<size_t>(num_layers)),
      lengths_(static_cast<size_t>(num_layers)) {}

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(
    int64_t layer,
    const at::Tensor& keys,
    const at::Tensor& values) {
  const auto index = static_cast<size_t>(layer);
  if (!keys_[index].defined()) {
    auto sizes = keys.sizes().vec();
    sizes[2] = capacity_;
    keys_[index] = at::empty(sizes, keys.options());
    values_[index] = at::empty(sizes, values.options());
  }
  const int64_t begin = lengths_[index];
  const int64_t count = keys.size(2);
  keys_[index].narrow(2, begin, count).copy_(keys);
  values_[index].narrow(2, begin, count).copy_(values);
  lengths_[index] = begin + count;
  return {
      keys_[index].narrow(2, 0, begin + count),
      values_[index].narrow(2, 0, begin + count)};
}

at::Tensor attend(
    const at::Tensor& queries_BHTD,
    at::Tensor keys_BHSD,
    at::Tensor values_BHSD,
    const AttentionMask& mask,
    const AttentionOptions& options) {
  if (mask.packed) {
    return attend_packed(queries_BHTD, keys_BHSD, values_BHSD, mask, options);
  }
  const int64_t group = queries_BHTD.size(1) / keys_BHSD.size(1);
  // Fused kernels on GPUs can share key heads among query heads, but not
  // together with a bias.
  const bool is_grouped = group > 1 && !queries_BHTD.is_cpu() &&
                          !mask.bias.defined() && options.weights == nullptr;
  if (group > 1 && !is_grouped) {
    keys_BHSD = repeat_heads(keys_BHSD, group);
    values_BHSD = repeat_heads(values_BHSD, group);
  }
  at::Tensor context_BHTD;
  if (options.weights == nullptr) {
    std::optional<PreferCudnn> preference;
    if (is_for_cudnn(queries_BHTD, mask)) {
      preference.emplace();
    }
    context_BHTD = at::scaled_dot_product_attention(
        queries_BHTD,
        keys_BHSD,
        values_BHSD,
        mask.bias.defined() ? std::optional(mask.bias) : std::nullopt,
        options.dropout,
        mask.is_causal,
        options.scale,
        is_grouped);
  } else {
    auto scores =
        at::matmul(queries_BHTD, keys_BHSD.transpose(2, 3)) * options.scale;
    if (mask.bias.defined()) {
      scores = scores + mask.bias;
    }
    auto weights =
        at::softmax(scores, -1, at::toOpMathType(scores.scalar_type()))
            .to(queries_BHTD.scalar_type());
    if (options.dropout > 0) {
      weights = at::dropout(weights, options.dropout, true);
    }
    *options.weights = weights;
    context_BHTD = at::matmul(weights, values_BHSD);
  }
  const auto context_BTHD = context_BHTD.transpose(1, 2);
  return context_BTHD.reshape({context_BTHD.size(0), context_BTHD.size(1), -1});
}

at::Tensor split_heads(const at::Tensor& x_BTC, int64_t head_channels) {
  return x_BTC.view({x_BTC.size(0), x_BTC.size(1), -1, head_channels})
      .transpose(1, 2);
}

} // namespace accelerate::models
