// SPDX-License-Identifier: Apache-2.0
// Packed sequences: concatenated sequences of different lengths.
//
// Shapes: S sequences of at most L tokens, T tokens in total, C channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace accelerate::models {

/// The positions of the sequences in a packed batch. Created without waiting
/// for a GPU.
class PackedRows {
 public:
  /// `mask`: S x L, ones followed by zeros, `num_tokens` ones in total.
  PackedRows(at::Tensor mask_SL, int64_t num_tokens);

  int64_t num_sequences() const { return mask_SL_.size(0); }
  /// An upper bound of the length of sequences.
  int64_t max_length() const { return mask_SL_.size(1); }
  const at::Tensor& mask_SL() const { return mask_SL_; }
  /// 1 x T: the position of each token in its sequence.
  const at::Tensor& positions_1T() const { return positions_1T_; }
  /// S + 1 int32 values: the start of each sequence, and the end of the last.
  const at::Tensor& starts() const { return starts_; }

  /// The first or last token of each sequence: S x C from 1 x T x C. The rows
  /// of empty sequences contain another token.
  at::Tensor first(const at::Tensor& x_1TC) const;
  at::Tensor last(const at::Tensor& x_1TC) const;
  /// Pads 1 x H x T x D to S x H x L x D. Padding has values of other tokens.
  at::Tensor pad(const at::Tensor& x_1HTD) const;
  /// Removes the padding: S x L x C to 1 x T x C.
  at::Tensor unpad(const at::Tensor& x_SLC) const;

 private:
  at::Tensor rows_at(const at::Tensor& x_1TC, const at::Tensor& indices) const;

  at::Tensor mask_SL_;
  int64_t num_tokens_;
  at::Tensor starts_;
  /// The sequence index of each token: T elements.
  at::Tensor sequences_T_;
  at::Tensor positions_1T_;
};

} // namespace accelerate::models
