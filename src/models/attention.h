// SPDX-License-Identifier: Apache-2.0
// Attention, its masks, and the key-value cache.
//
// Shapes: B batch, T query tokens, S key tokens, H heads, D channels per head,
// C = H x D.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "models/packed_rows.h"

namespace accelerate::models {

/// Which tokens may attend to which. All to all if no member is set.
struct AttentionMask {
  /// B x 1 x (1 or T) x S: 0, or minus infinity if masked. Undefined if nothing
  /// is masked.
  at::Tensor bias = {};
  /// Token t attends to tokens 0 to t; `bias` is then undefined.
  bool is_causal = false;
  /// If set, B is 1 and tokens attend only to their own sequence; `bias` is
  /// then undefined.
  std::shared_ptr<const PackedRows> packed = {};
};

struct MaskShape {
  int64_t num_queries = 0;
  /// Cached tokens before the first query.
  int64_t num_past = 0;
  bool is_causal = false;
  /// Never set `AttentionMask::is_causal`: the caller needs the bias itself.
  bool as_bias = false;
};

/// `padding`: B x (past + queries), 0 for padding tokens; undefined if there
/// are none. Does not wait for a GPU.
AttentionMask make_mask(
    const at::Tensor& padding,
    const MaskShape& shape,
    const at::TensorOptions& options);

/// Keys and values of earlier tokens, per layer. Without gradients.
class KeyValueCache {
 public:
  /// `capacity` is the maximum number of tokens.
  KeyValueCache(int64_t num_layers, int64_t capacity);
  /// Appends those of new tokens (B x H x T x D) and returns all of the
  /// layer's.
  std::pair<at::Tensor, at::Tensor>
  append(int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  /// Tokens cached by layer 0; between two calls all layers have the same.
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
  /// If set, receives the weights (B x H x T x S) after softmax, and attention
  /// is computed step by step. Packed sequences are padded in it.
  at::Tensor* weights = nullptr;
};

/// The context, B x T x C. Keys and values may have fewer heads than queries:
/// each serves a group of consecutive query heads.
at::Tensor attend(
    const at::Tensor& queries_BHTD,
    at::Tensor keys_BHSD,
    at::Tensor values_BHSD,
    const AttentionMask& mask,
    const AttentionOptions& options);

/// Reshapes B x T x C to B x H x T x D.
at::Tensor split_heads(const at::Tensor& x_BTC, int64_t head_channels);

} // namespace accelerate::models
