// SPDX-License-Identifier: Apache-2.0
#include "models/packed_rows.h"

#include <ATen/ATen.h>

#include <utility>

namespace accelerate::models {

PackedRows::PackedRows(at::Tensor mask_SL, int64_t num_tokens)
    : mask_SL_(std::move(mask_SL)), num_tokens_(num_tokens) {
  const auto ends_S = mask_SL_.ne(0).sum(1).cumsum(0);
  starts_ = at::constant_pad_nd(ends_S, {1, 0}).to(at::kInt);
  const auto tokens_T = at::arange(num_tokens_, ends_S.options());
  sequences_T_ =
      at::searchsorted(ends_S, tokens_T, /*out_int32=*/false, /*right=*/true);
  positions_1T_ =
      (tokens_T - starts_.index_select(0, sequences_T_)).unsqueeze(0);
}

at::Tensor PackedRows::rows_at(
    const at::Tensor& x_1TC,
    const at::Tensor& indices) const {
  // Empty sequences at the end start after the last token, so clamp the
  // indices.
  return x_1TC.select(0, 0).index_select(
      0, indices.clamp(0, num_tokens_ - 1).flatten());
}

at::Tensor PackedRows::first(const at::Tensor& x_1TC) const {
  return rows_at(x_1TC, starts_.narrow(0, 0, num_sequences()));
}

at::Tensor PackedRows::last(const at::Tensor& x_1TC) const {
  return rows_at(x_1TC, starts_.narrow(0, 1, num_sequences()) - 1);
}

at::Tensor PackedRows::pad(const at::Tensor& x_1HTD) const {
  const int64_t H = x_1HTD.size(1);
  const auto indices_SL = starts_.narrow(0, 0, num_sequences()).unsqueeze(1) +
                          at::arange(max_length(), starts_.options());
  return rows_at(x_1HTD.transpose(1, 2).flatten(2), indices_SL)
      .view({num_sequences(), max_length(), H, -1})
      .transpose(1, 2);
}

at::Tensor PackedRows::unpad(const at::Tensor& x_SLC) const {
  const auto indices_T = sequences_T_ * max_length() + positions_1T_.flatten();
  return x_SLC.flatten(0, 1).index_select(0, indices_T).unsqueeze(0);
}

} // namespace accelerate::models
