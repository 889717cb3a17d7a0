// SPDX-License-Identifier: Apache-2.0
// Attention, its masks, and keys and values kept from one call to the next.
//
// Shapes: B batch, T tokens that ask, S tokens that are asked, H heads, D
// channels of a head, C = H x D.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "models/packed_rows.h"

namespace accelerate::models {

/// Who may look at whom. Neither member set: everybody at everybody.
struct AttentionMask {
  /// B x 1 x (1 or T) x S: 0, or minus infinity where a token may not look.
  /// Undefined where all may.
  at::Tensor bias = {};
  /// Token t looks at tokens 0 to t; `bias` is undefined then.
  bool is_causal = false;
  /// Where set, B is 1 and tokens look at those of their own sequence only;
  /// `bias` is undefined then.
  std::shared_ptr<const PackedRows> packed = {};
};

struct MaskShape {
  int64_t num_queries = 0;
  /// Tokens before the first query, whose keys are kept.
  int64_t num_past = 0;
  bool is_causal = false;
  /// Never `AttentionMask::is_causal`: the caller needs the bias itself.
  bool as_bias = false;
};

/// `padding`: B x (past + queries), 0 for tokens that nobody may look at;
/// undefined where there are none. Does not wait for a GPU.
AttentionMask make_mask(
    const at::Tensor& padding,
    const MaskShape& shape,
    const at::TensorOptions& options);

/// Keys and values of earlier tokens, layer by layer. No gradients.
class KeyValueCache {
 public:
  /// `capacity`: tokens at most.
  KeyValueCache(int64_t num_layers, int64_t capacity);
  /// Adds those of new tokens (B x H x T x D) and returns all of the layer's.
  std::pair<at::Tensor, at::Tensor>
  append(int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  /// Tokens kept by layer 0: what every layer has between two calls.
  int64_t length() const { return lengths_.front(); }

 private:
  int64_t capacity_;
  std::vector<at::Tensor> keys_;
  std::vector<at::Tensor> values_;
  std::vector<int64_t> lengths_;
};

struct AttentionOptions {
  double scale = 1.0;
  double dropout = 0.0;
  /// Where set, receives the weights (B x H x T x S) after softmax, and
  /// attention is computed step by step. Packed sequences are padded there.
  at::Tensor* weights = nullptr;
};

/// The context B x T x C. Keys and values may have fewer heads than queries:
/// each serves a run of neighbouring ones.
at::Tensor attend(
    const at::Tensor& queries_BHTD,
    at::Tensor keys_BHSD,
    at::Tensor values_BHSD,
    const AttentionMask& mask,
    const AttentionOptions& options);

/// B x T x C as B x H x T x D.
at::Tensor split_heads(const at::Tensor& x_BTC, int64_t head_channels);

} // namespace accelerate::models
