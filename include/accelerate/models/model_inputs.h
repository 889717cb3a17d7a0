// SPDX-License-Identifier: Apache-2.0
// Inputs and outputs of models.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>
#include <vector>

#include "accelerate/detail/defined_tensors.h"
#include "accelerate/export.h"

namespace accelerate::models {

/// The inputs of a model: B sequences of T tokens. All members except
/// `input_ids` are optional.
struct ACCELERATE_API ModelInputs {
  /// Token ids, B x T.
  at::Tensor input_ids = {};
  /// B x T, with 0 for padding tokens. On a CPU, a mask of ones costs nothing.
  /// On a GPU, leave the mask out if nothing is padded, because checking it
  /// would wait for the device.
  at::Tensor attention_mask = {};
  /// The index of the sentence in a pair, B x T. Default: zeros.
  at::Tensor token_type_ids = {};
  /// The positions of tokens, B x T. By default, positions are counted from the
  /// first token.
  at::Tensor position_ids = {};
  /// For packed sequences (see `pack` in `packing.h`), `input_ids` is one row
  /// (1 x T) with the concatenated tokens of S sequences. This mask is the
  /// `attention_mask` that the sequences would have if they were padded on the
  /// right to L tokens. Its shape is S x L, each row contains ones followed by
  /// zeros, and there are T ones in total. Tokens attend only to their own
  /// sequence, positions start at its first token, and a classifier returns one
  /// result per sequence. `attention_mask` must then be undefined.
  at::Tensor packed_mask = {};
  /// If set, the model computes `loss`. For a classifier: B class indices, B or
  /// B x L regression targets, or B x L zeros and ones for multi-label
  /// problems. For a language model: B x T token ids, with -100 for tokens that
  /// do not count. Causal models shift the labels internally.
  at::Tensor labels = {};
};
inline auto tensor_fields(ModelInputs& inputs) {
  return std::tie(
      inputs.input_ids,
      inputs.attention_mask,
      inputs.token_type_ids,
      inputs.position_ids,
      inputs.packed_mask,
      inputs.labels);
}
inline auto field_names(const ModelInputs&) {
  return std::array{
      "input_ids",
      "attention_mask",
      "token_type_ids",
      "position_ids",
      "packed_mask",
      "labels"};
}

/// Returns the labels (B x T) that the loss of a causal model compares with its
/// logits. They are `labels` shifted by one token, with -100 at the last token
/// of each sequence, even in packed batches. The number of labels that count is
/// the weight of the loss. `Perplexity` takes these labels together with the
/// logits. Throws `UsageError` unless `labels` is B x T.
///
///     const auto labels = accelerate::models::causal_labels(batch);
///     accelerator.backward(
///         loss, {.weight = accelerate::num_loss_tokens(labels)});
ACCELERATE_API at::Tensor causal_labels(const ModelInputs& inputs);

/// The outputs of a model. Members that were not computed are undefined tensors
/// or empty lists. For S packed sequences, B x T means 1 x T. The logits of a
/// classifier, `pooler_output` and `attentions` (S x H x L x L) are per
/// sequence.
struct ACCELERATE_API ModelOutput {
  /// A scalar, if labels were passed.
  at::Tensor loss = {};
  /// B x L for a classifier, and B x T x V for a language model. With tensor
  /// parallelism, a language model in training mode leaves the logits undefined
  /// if labels were passed, because no rank has all logits.
  at::Tensor logits = {};
  /// B x T x C, from `AutoModel`.
  at::Tensor last_hidden_state = {};
  /// B x C, from `AutoModel` if the architecture pools (bert, roberta).
  at::Tensor pooler_output = {};
  /// B x T x C: the input of every block, and the last hidden state.
  std::vector<at::Tensor> hidden_states = {};
  /// B x H x T x T per block, after softmax.
  std::vector<at::Tensor> attentions = {};
};
inline auto tensor_fields(ModelOutput& output) {
  return std::tuple<
      detail::DefinedTensors,
      std::vector<at::Tensor>&,
      std::vector<at::Tensor>&>(
      {&output.loss,
       &output.logits,
       &output.last_hidden_state,
       &output.pooler_output},
      output.hidden_states,
      output.attentions);
}

struct ForwardOptions {
  bool output_hidden_states = false;
  /// Whether to return `attentions`. Attention is then computed step by step
  /// instead of with the fused operator.
  bool output_attentions = false;
};

} // namespace accelerate::models
