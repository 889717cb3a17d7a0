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

/// Which tokens may attend to which. If no member is set, all may attend to
/// all.
struct AttentionMask {
  /// B x 1 x (1 or T) x S: 0, or minus infinity if masked. Undefined if nothing
  /// is masked.
  at::Tensor bias = {};
  /// Token t attends to tokens 0 to t. `bias` is then undefined.
  bool is_causal = false;
  /// If set, B is 1, tokens attend only to their own sequence, and `bias` is
  /// undefined.
  std::shared_ptr<const PackedRows> packed = {};
};

struct MaskShape {
  int64_t num_queries = 0;
  /// Cached tokens before the first query.
  int64_t num_past = 0;
  bool is_causal = false;
  /// Whether to return a bias even for a causal mask, instead of setting
  /// `AttentionMask::is_causal`.
  bool as_bias = false;
};

/// `padding`: B x (past + queries), 0 for padding tokens. Undefined if there
/// are none. Does not wait for a GPU.
AttentionMask make_mask(
    const at::Tensor& padding,
    const MaskShape& shape,
    const at::TensorOptions& options);

/// Keys and values of earlier tokens, per layer. They have no gradients.
class KeyValueCache {
 public:
  /// `capacity` is the maximum number of tokens.
  KeyValueCache(int64_t num_layers, int64_t capacity);
  /// Appends the keys and values of new tokens (B x H x T x D). Returns all
  /// keys and values of the layer.
  std::pair<at::Tensor, at::Tensor>
  append(int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  /// The number of tokens cached by layer 0. Between two calls of the model,
  /// all layers have the same number.
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
  /// If set, receives the attention weights (B x H x T x S) after softmax.
  /// Attention is then computed step by step. For packed sequences the weights
  /// are padded.
  at::Tensor* weights = nullptr;
};

/// Returns the context, B x T x C. Keys and values may have fewer heads than
/// queries: each serves a group of consecutive query heads.
at::Tensor attend(
    const at::Tensor& queries_BHTD,
    at::Tensor keys_BHSD,
    at::Tensor values_BHSD,
    const AttentionMask& mask,
    const AttentionOptions& options);

/// Reshapes B x T x C to B x H x T x D.
at::Tensor split_heads(const at::Tensor& x_BTC, int64_t head_channels);

} // namespace accelerate::models
