// SPDX-License-Identifier: Apache-2.0
// Collectives on trees of tensors, checked before they run.
//
// Ranks first exchange a few bytes that describe their values. Small CPU values
// are sent in the same exchange. If the values do not match, every rank throws
// a `MismatchError` that names the deviating rank. Unchecked collectives would
// instead return wrong data on one rank and hang on another.
//
// A number is sent as a tensor without dimensions, and a vector of numbers as a
// one-dimensional tensor. A value that contains neither tensors nor numbers
// does not compile. Integers are summed as int64. If the result does not fit
// into the original type, `UsageError` is thrown.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/detail/leaves.h"
#include "accelerate/distributed/process_group.h"
#include "accelerate/export.h"
#include "accelerate/state/tree.h"
#include "accelerate/training/random.h"

namespace accelerate {

/// The type that results from concatenating a value over ranks. It is the type
/// of the value, except that a number or an array of numbers becomes a
/// `std::vector`, and a map of numbers or arrays becomes a `std::map` of
/// vectors.
template <class T>
using GatheredOf = decltype(detail::widen(std::declval<const T&>()));

/// Concatenates each tensor of `value` over all ranks along dim 0, in rank
/// order, on every rank. Dim 0 may differ between ranks. A scalar counts as one
/// row. Not differentiable.
///
///     const std::vector<double> seconds = all_gather(group, 0.5);
template <class T>
GatheredOf<T> all_gather(const ProcessGroup& group, const T& value) {
  return detail::put_back(
      detail::widen(value),
      detail::all_gather(group, detail::take_apart(value)));
}

/// Like `all_gather`, but only `root` receives the result. Other ranks receive
/// an empty optional.
template <class T>
std::optional<GatheredOf<T>>
gather_to(const ProcessGroup& group, const T& value, int root = 0) {
  auto tensors = detail::gather_to(group, detail::take_apart(value), root);
  if (!tensors) {
    return std::nullopt;
  }
  return detail::put_back(detail::widen(value), *tensors);
}

/// Reduces each element over all ranks, and returns new tensors.
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

/// Splits `root`'s tensors into `world_size()` equal parts along dim 0. Each
/// rank receives its own part. Other ranks pass a tree of the same structure.
/// The tensors of this tree are ignored.
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

/// Pads dimension `dim` of each tensor with `pad_index` to the largest size on
/// any rank. Tensors without that dimension are unchanged. All other dimensions
/// may differ between ranks. Throws `UsageError` if a dtype cannot represent
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

/// Copies the state of rank 0's default CPU generator, and of the generator of
/// `device` if that is a GPU, to every rank.
ACCELERATE_API void synchronize_rng_states(
    const ProcessGroup& group,
    c10::Device device = c10::Device(c10::kCPU));

} // namespace accelerate
