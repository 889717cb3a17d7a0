// SPDX-License-Identifier: Apache-2.0
// What models are given and what they answer.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>
#include <vector>

#include "accelerate/detail/defined_tensors.h"
#include "accelerate/export.h"

namespace accelerate::models {

/// What a model is given. Shapes: B sequences of T tokens. All but `input_ids`
/// may be left out.
struct ACCELERATE_API ModelInputs {
  /// B x T token ids.
  at::Tensor input_ids = {};
  /// B x T, 0 where a token is padding. On a CPU a mask of ones costs nothing;
  /// on a GPU leave it out where nothing is padded (looking would wait for the
  /// device).
  at::Tensor attention_mask = {};
  /// B x T, which sentence of a pair; zeros where left out.
  at::Tensor token_type_ids = {};
  /// B x T; counted from the first token where left out.
  at::Tensor position_ids = {};
  /// Given where sequences are packed, see `pack` (`packing.h`): `input_ids` is
  /// one row (1 x T) of the tokens of S sequences, one behind the other, and
  /// this is S x L of ones and then zeros, T ones in all: the `attention_mask`
  /// that they would have if they were padded on the right to L tokens. Tokens
  /// look at those of their own sequence only, positions are counted from its
  /// first, and a classifier answers for each of the S. There is no
  /// `attention_mask` then.
  at::Tensor packed_mask = {};
  /// Makes the model compute `loss`. A classifier: B class numbers, or B (x L)
  /// numbers of a regression, or B x L of zeros and ones for several labels at
  /// once. A language model: B x T token ids, -100 where none counts; a causal
  /// one shifts them by itself.
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

/// The labels that the loss of a causal model compares its logits with, B x T:
/// `labels` moved by one token, -100 at the last token of each sequence, packed
/// ones included. Their number is the weight of the loss; pass them to
/// `Perplexity` with the logits. Throws `UsageError` unless `labels` is B x T.
///
///     const auto labels = accelerate::models::causal_labels(batch);
///     accelerator.backward(
///         loss, {.weight = accelerate::num_loss_tokens(labels)});
ACCELERATE_API at::Tensor causal_labels(const ModelInputs& inputs);

/// What a model answers. Members that the model or the call does not have are
/// undefined tensors or empty. Of S packed sequences, what is B x T here is
/// 1 x T; logits of a classifier, `pooler_output` and `attentions` (S x H x L x
/// L) are of each sequence.
struct ACCELERATE_API ModelOutput {
  /// A number, where labels were given.
  at::Tensor loss = {};
  /// B x L of a classifier, B x T x V of a language model.
  at::Tensor logits = {};
  /// B x T x C, of `AutoModel`.
  at::Tensor last_hidden_state = {};
  /// B x C, of `AutoModel` where the architecture pools (bert, roberta).
  at::Tensor pooler_output = {};
  /// B x T x C: the input of every block, and the last hidden state.
  std::vector<at::Tensor> hidden_states = {};
  /// B x H x T x T of every block, after softmax.
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
  /// Attention is then computed step by step instead of by the fused operator.
  bool output_attentions = false;
};

} // namespace accelerate::models
