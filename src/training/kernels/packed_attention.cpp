// SPDX-License-Identifier: Apache-2.0
// Shapes: T tokens in total, H heads of queries, G heads of keys and values, D
// channels per head, S sequences of at most L tokens.
#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/library.h>

#include <algorithm>

#include "accelerate/error.h"
#include "accelerate/training/kernels.h"
#include "core/base/str.h"
#include "training/kernels/operator.h"

namespace accelerate::kernels {
namespace {

/// During its lifetime, attention does not use cuDNN.
class WithoutCudnn {
 public:
  WithoutCudnn() : was_enabled_(at::globalContext().userEnabledCuDNNSDP()) {
    at::globalContext().setSDPUseCuDNN(false);
  }
  ~WithoutCudnn() { at::globalContext().setSDPUseCuDNN(was_enabled_); }
  WithoutCudnn(const WithoutCudnn&) = delete;
  WithoutCudnn& operator=(const WithoutCudnn&) = delete;

 private:
  bool was_enabled_;
};

/// Whether torch's flash kernels can be used. They support packed sequences,
/// for 16-bit types on a GPU that is new enough. On the newest GPUs torch would
/// prefer cuDNN.
bool is_for_flash(
    const at::Tensor& queries_THD,
    const at::Tensor& keys_TGD,
    const at::Tensor& values_TGD,
    const PackedAttentionOptions& options) {
  constexpr int64_t kMultiple = 8; // other sizes are padded by torch's caller
  const auto batched = [](const at::Tensor& x_THD) {
    return x_THD.transpose(0, 1).unsqueeze(0);
  };
  const WithoutCudnn without_cudnn;
  return !queries_THD.is_cpu() && queries_THD.size(2) % kMultiple == 0 &&
         at::_fused_sdp_choice(
             batched(queries_THD),
             batched(keys_TGD),
             batched(values_TGD),
             std::nullopt,
             options.dropout,
             options.is_causal,
             options.scale,
             /*enable_gqa=*/true) ==
             static_cast<int64_t>(at::SDPBackend::flash_attention);
}

void check_tensors(
    const at::Tensor& queries,
    const at::Tensor& keys,
    const at::Tensor& values,
    const at::Tensor& starts) {
  if (queries.dim() != 3 || keys.dim() != 3 || !queries.is_floating_point() ||
      keys.sizes() != values.sizes() || keys.size(0) != queries.size(0) ||
      keys.size(2) != queries.size(2) || keys.size(1) == 0 ||
      queries.size(1) % keys.size(1) != 0 || keys.dtype() != queries.dtype() ||
      values.dtype() != queries.dtype()) {
    throw UsageError(str_cat(
        "[packed_attention] Got queries ",
        described(queries),
        ", keys ",
        described(keys),
        " and values ",
        described(values),
        ". Pass tensors of shape [tokens, heads, channels] and of the same "
        "floating-point type. The number of query heads must be a multiple of "
        "the number of key and value heads"));
  }
  if (starts.dim() != 1 || starts.size(0) < 2 ||
      !at::isIntegralType(starts.scalar_type(), /*includeBool=*/false) ||
      starts.device() != queries.device()) {
    throw UsageError(str_cat(
        "[packed_attention] Got starts ",
        described(starts),
        " on ",
        starts.device(),
        ". Pass a vector of at least two integers on ",
        queries.device(),
        ": the start of each sequence, and the end of the last one"));
  }
}

void check_options(int64_t max_length, const PackedAttentionOptions& options) {
  if (max_length < 1) {
    throw UsageError(str_cat(
        "[packed_attention] max_length is ",
        max_length,
        ", expected at least the length of the longest sequence"));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw UsageError(str_cat(
        "[packed_attention] dropout is ",
        options.dropout,
        ", expected 0 or more and less than 1"));
  }
}

/// Checked only on the host, because checking on a device would wait for it.
void check_starts(const at::Tensor& starts, int64_t T, int64_t L) {
  const auto* at = starts.const_data_ptr<int>();
  const int64_t S = starts.size(0) - 1;
  bool is_right = at[0] == 0 && at[S] == T;
  for (int64_t i = 0; i < S && is_right; ++i) {
    is_right = at[i] <= at[i + 1] && at[i + 1] - at[i] <= L;
  }
  if (!is_right) {
    throw UsageError(str_cat(
        "[packed_attention] The starts do not split ",
        T,
        " tokens into sequences of at most ",
        L,
        ". Pass 0 and then the cumulative sums of the lengths, and check "
        "max_length"));
  }
}

/// Pads every sequence to L tokens.
at::Tensor padded_attention(
    const at::Tensor& queries_THD,
    const at::Tensor& keys_TGD,
    const at::Tensor& values_TGD,
    const at::Tensor& starts,
    int64_t L,
    const PackedAttentionOptions& options) {
  const int64_t T = queries_THD.size(0);
  const int64_t S = starts.size(0) - 1;
  const int64_t group = queries_THD.size(1) / keys_TGD.size(1);
  const auto begins_S = starts.narrow(0, 0, S);
  const auto ends_S = starts.narrow(0, 1, S);
  const auto steps_L = at::arange(L, starts.options());
  // Padding uses an extra row of zeros at the end. If it used tokens of another
  // sequence, these would receive the gradients of padding, which may be NaN.
  const auto indices_SL = begins_S.unsqueeze(1) + steps_L;
  const auto indices =
      at::where(indices_SL.lt(ends_S.unsqueeze(1)), indices_SL, T)
          .to(at::kLong)
          .flatten();
  const auto pad = [&](const at::Tensor& x_THD, int64_t times) {
    const auto zeros = at::zeros_like(x_THD.narrow(0, 0, 1));
    const auto x_SHLD = at::cat({x_THD, zeros})
                            .index_select(0, indices)
                            .view({S, L, x_THD.size(1), x_THD.size(2)})
                            .transpose(1, 2);
    return times == 1 ? x_SHLD : x_SHLD.repeat_interleave(times, 1);
  };
  // Padding is on the right, where causal tokens do not attend to it.
  std::optional<at::Tensor> mask_S11L;
  if (!options.is_causal) {
    mask_S11L = steps_L.unsqueeze(0)
                    .lt((ends_S - begins_S).unsqueeze(1))
                    .view({S, 1, 1, L});
  }
  const auto context_SHLD = at::scaled_dot_product_attention(
      pad(queries_THD, 1),
      pad(keys_TGD, group),
      pad(values_TGD, group),
      mask_S11L,
      options.dropout,
      options.is_causal,
      options.scale);
  const auto tokens_T = at::arange(T, starts.options());
  const auto sequences_T =
      at::searchsorted(ends_S, tokens_T, /*out_int32=*/true, /*right=*/true);
  const auto indices_T = sequences_T.to(at::kLong) * L + tokens_T -
                         begins_S.index_select(0, sequences_T);
  return context_SHLD.transpose(1, 2).flatten(0, 1).index_select(0, indices_T);
}

} // namespace

at::Tensor packed_attention(
    const at::Tensor& given_queries,
    const at::Tensor& given_keys,
    const at::Tensor& given_values,
    const at::Tensor& starts,
    int64_t max_length,
    const PackedAttentionOptions& options) {
  const auto queries_THD = lowered(given_queries);
  const auto keys_TGD = lowered(given_keys);
  const auto values_TGD = lowered(given_values);
  check_tensors(queries_THD, keys_TGD, values_TGD, starts);
  check_options(max_length, options);
  const auto own_starts = starts.to(at::kInt).contiguous();
  // While a compiler traces, tensors have no values.
  if (own_starts.is_cpu() && !at::isTensorSubclassLike(own_starts)) {
    check_starts(own_starts, queries_THD.size(0), max_length);
  }
  if (queries_THD.size(0) == 0) {
    return queries_THD + (keys_TGD.sum() + values_TGD.sum());
  }
  // Heads that are views of one product already have this layout.
  const auto dense = [](const at::Tensor& x) {
    return x.stride(2) == 1 ? x : x.contiguous();
  };
  const auto queries = dense(queries_THD);
  const auto keys = dense(keys_TGD);
  const auto values = dense(values_TGD);
  if (!is_for_flash(queries, keys, values, options)) {
    return padded_attention(
        queries,
        keys,
        values,
        own_starts,
        std::min(max_length, queries.size(0)),
        options);
  }
  return std::get<0>(at::_flash_attention_forward(
      queries,
      keys,
      values,
      own_starts,
      own_starts,
      max_length,
      max_length,
      options.dropout,
      options.is_causal,
      /*return_debug_mask=*/false,
      options.scale));
}

TORCH_LIBRARY_FRAGMENT(accelerate, library) {
  library.def(
      "packed_attention(Tensor queries, Tensor keys, Tensor values, "
      "Tensor starts, int max_length, bool is_causal, float dropout, "
      "float? scale) -> Tensor",
      [](const at::Tensor& queries,
         const at::Tensor& keys,
         const at::Tensor& values,
         const at::Tensor& starts,
         int64_t max_length,
         bool is_causal,
         double dropout,
         std::optional<double> scale) {
        return packed_attention(
            queries,
            keys,
            values,
            starts,
            max_length,
            {.is_causal = is_causal, .dropout = dropout, .scale = scale});
      });
}

} // namespace accelerate::kernels
