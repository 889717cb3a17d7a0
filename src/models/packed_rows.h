// SPDX-License-Identifier: Apache-2.0
// Sequences of different lengths one behind the other in a row.
//
// Shapes: S sequences of at most L tokens, T tokens in all, C channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace accelerate::models {

/// Where the sequences of a packed batch lie. Made without waiting for a GPU.
class PackedRows {
 public:
  /// `mask`: S x L, ones and then zeros, `num_tokens` ones in all.
  PackedRows(at::Tensor mask_SL, int64_t num_tokens);

  int64_t num_sequences() const { return mask_SL_.size(0); }
  /// No sequence is longer.
  int64_t max_length() const { return mask_SL_.size(1); }
  const at::Tensor& mask_SL() const { return mask_SL_; }
  /// 1 x T: the place of each token in its sequence.
  const at::Tensor& positions_1T() const { return positions_1T_; }
  /// S + 1 numbers of 32 bits: where sequences begin, and where the last ends.
  const at::Tensor& starts() const { return starts_; }

  /// S x C of 1 x T x C: the first token of each sequence, and the last. Of a
  /// sequence without tokens it is one of another.
  at::Tensor first(const at::Tensor& x_1TC) const;
  at::Tensor last(const at::Tensor& x_1TC) const;
  /// 1 x H x T x D as S x H x L x D; what is no token is one of some sequence.
  at::Tensor pad(const at::Tensor& x_1HTD) const;
  /// S x L x C as 1 x T x C.
  at::Tensor unpad(const at::Tensor& x_SLC) const;

 private:
  at::Tensor rows_at(const at::Tensor& x_1TC, const at::Tensor& places) const;

  at::Tensor mask_SL_;
  int64_t num_tokens_;
  at::Tensor starts_;
  /// T: the sequence of each token.
  at::Tensor sequences_T_;
  at::Tensor positions_1T_;
};

} // namespace accelerate::models
