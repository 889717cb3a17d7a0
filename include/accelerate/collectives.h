// SPDX-License-Identifier: Apache-2.0
// Collectives on trees of tensors, checked before they run.
//
// Ranks first exchange a few bytes that describe their values; small values on
// the CPU travel in the same exchange. Where they do not fit together, every
// rank gets a `MismatchError` that names the odd rank, instead of wrong data on
// one and a hang on another.
//
// A number counts as a tensor without dimensions, a vector of numbers as one
// with a single dimension; a value that holds neither does not compile. Whole
// numbers are added as int64 and must fit their type again (`UsageError`).
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/detail/leaves.h"
#include "accelerate/export.h"
#include "accelerate/process_group.h"
#include "accelerate/random.h"
#include "accelerate/tree.h"

namespace accelerate {

/// A value as it is when those of all ranks stand one after the other: of the
/// same type, but a `std::vector` in the place of each number and array of
/// them, and a `std::map` in the place of a map of such.
template <class T>
using GatheredOf = decltype(detail::make_room(std::declval<const T&>()));

/// Each tensor of `value` concatenated over all ranks along dim 0, in rank
/// order, on every rank. Dim 0 may differ between ranks; a scalar counts as one
/// row. Gradients do not flow through.
///
///     const std::vector<double> seconds = all_gather(group, 0.5);
template <class T>
GatheredOf<T> all_gather(const ProcessGroup& group, const T& value) {
  return detail::put_back(
      detail::make_room(value),
      detail::all_gather(group, detail::take_apart(value)));
}

/// As `all_gather`, for `root` alone; nothing elsewhere.
template <class T>
std::optional<GatheredOf<T>>
gather_to(const ProcessGroup& group, const T& value, int root = 0) {
  auto tensors = detail::gather_to(group, detail::take_apart(value), root);
  if (!tensors) {
    return std::nullopt;
  }
  return detail::put_back(detail::make_room(value), *tensors);
}

/// The element-wise reduction over all ranks, in new tensors.
///
///     using Losses = std::map<std::string, double>;
///     const auto mean =
///         reduce(group, Losses{{"loss", 0.5}}, accelerate::ReduceOp::kMean);
template <class T>
T reduce(
    const ProcessGroup& group,
    const T& value,
    ReduceOp op = ReduceOp::kSum) {
  return detail::put_back(
      value, detail::reduce(group, detail::take_apart(value), op));
}

/// Overwrites the tensors and numbers of `value` with those of `root`.
template <class T>
void broadcast(const ProcessGroup& group, T& value, int root = 0) {
  const auto leaves = detail::take_apart(value);
  detail::broadcast(group, leaves, root);
  detail::put_in(value, leaves.tensors);
}

/// Cuts `root`'s tensors into `world_size()` equal parts along dim 0 and gives
/// each rank its own. Other ranks pass a tree of the same structure, whose
/// tensors are ignored.
template <class T>
T scatter(const ProcessGroup& group, const T& value, int root = 0) {
  return detail::put_back(
      value, detail::scatter(group, detail::take_apart(value), root));
}

struct ACCELERATE_API PadOptions {
  int64_t dim = 0;
  double pad_index = 0;
  bool pad_first = false;
};

/// Pads dimension `dim` of each tensor with `pad_index` to the longest of all
/// ranks. Tensors without that dimension stay as they are. All other sizes may
/// differ between ranks. Throws `UsageError` where a dtype cannot hold
/// `pad_index`.
template <class T>
T pad_across_processes(
    const ProcessGroup& group,
    const T& value,
    PadOptions options = {}) {
  return detail::put_back(
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
