// SPDX-License-Identifier: Apache-2.0
// Collectives on trees of tensors, checked before they run.
//
// Ranks first exchange a few bytes that describe their values; small values on
// the CPU travel in the same exchange. Where they do not fit together, every
// rank gets a `MismatchError` that names the odd rank, instead of wrong data on
// one and a hang on another.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/detail/leaves.h"
#include "accelerate/export.h"
#include "accelerate/process_group.h"
#include "accelerate/random.h"
#include "accelerate/tree.h"

namespace accelerate {

/// Each tensor of `value` concatenated over all ranks along dim 0, in rank
/// order, on every rank. Dim 0 may differ between ranks; a scalar counts as one
/// row. Gradients do not flow through.
template <class T>
T all_gather(const ProcessGroup& group, const T& value) {
  return tree::unflatten(
      value, detail::all_gather(group, detail::take_apart(value)));
}

/// As `all_gather`, for `root` alone; nothing elsewhere.
template <class T>
std::optional<T>
gather(const ProcessGroup& group, const T& value, int root = 0) {
  auto tensors = detail::gather(group, detail::take_apart(value), root);
  if (!tensors) {
    return std::nullopt;
  }
  return tree::unflatten(value, *tensors);
}

/// The element-wise reduction over all ranks, in new tensors.
template <class T>
T reduce(
    const ProcessGroup& group,
    const T& value,
    ReduceOp op = ReduceOp::kSum) {
  return tree::unflatten(
      value, detail::reduce(group, detail::take_apart(value), op));
}

/// Overwrites the tensors of `value` with those of `root`.
template <class T>
void broadcast(const ProcessGroup& group, T& value, int root = 0) {
  detail::broadcast(group, detail::take_apart(value), root);
}

/// Cuts `root`'s tensors into `world_size()` equal parts along dim 0 and gives
/// each rank its own. Other ranks pass a tree of the same structure, whose
/// tensors are ignored.
template <class T>
T scatter(const ProcessGroup& group, const T& value, int root = 0) {
  return tree::unflatten(
      value, detail::scatter(group, detail::take_apart(value), root));
}

struct ACCELERATE_API PadOptions {
  int64_t dim = 0;
  double pad_index = 0;
  bool pad_first = false;
};

/// Pads dimension `dim` of each tensor with `pad_index` to the longest of all
/// ranks. Tensors without that dimension stay as they are, and their sizes may
/// differ between ranks.
template <class T>
T pad_across_processes(
    const ProcessGroup& group,
    const T& value,
    PadOptions options = {}) {
  return tree::unflatten(
      value,
      detail::pad_across_processes(
          group,
          detail::take_apart(value),
          options.dim,
          options.pad_index,
          options.pad_first));
}

/// Gives every rank the state of rank 0's default generator of the CPU and,
/// where `device` is a GPU, of that GPU.
ACCELERATE_API void synchronize_rng_states(
    const ProcessGroup& group,
    c10::Device device = c10::Device(c10::kCPU));

} // namespace accelerate
