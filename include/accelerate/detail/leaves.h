// SPDX-License-Identifier: Apache-2.0
// Trees as flat lists of tensors, for the compiled part of `collectives.h`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerate/distributed/process_group.h"
#include "accelerate/export.h"
#include "accelerate/state/tree.h"

namespace accelerate::detail {

/// A flattened tree: its tensors (numbers are converted to tensors) and a
/// string that describes its structure.
struct Leaves {
  std::vector<at::Tensor> tensors;
  std::string structure;
  /// Which tensors were numbers. May be empty if none were.
  std::vector<bool> are_numbers = {};
};
template <class T>
Leaves take_apart(const T& value) {
  static_assert(
      tree::HoldsValues<T>,
      "this value contains neither tensors nor numbers: pass a tensor, "
      "a number, a container of them, or a struct with tensor_fields (for "
      "strings and other objects, use gather_objects of objects.h)");
  struct Taker final : tree::Visitor {
    void tensor(at::Tensor& value) override {
      tensors.push_back(value);
      are_numbers.push_back(false);
    }
    void numbers(tree::Numbers& value) override {
      tensors.push_back(value.tensor());
      are_numbers.push_back(true);
    }
    std::vector<at::Tensor> tensors;
    std::vector<bool> are_numbers;
  } taker;
  tree::walk(const_cast<T&>(value), taker);
  return {
      std::move(taker.tensors),
      tree::structure(value),
      std::move(taker.are_numbers)};
}
/// Replaces the tensors of a tree with `tensors` (as many as `take_apart`
/// returned).
template <class T>
void put_in(T& value, const std::vector<at::Tensor>& tensors) {
  struct Putter final : tree::Visitor {
    explicit Putter(const std::vector<at::Tensor>& tensors)
        : tensors(tensors) {}
    void tensor(at::Tensor& value) override { value = tensors.at(next++); }
    void numbers(tree::Numbers& value) override {
      value.assign(tensors.at(next++));
    }
    const std::vector<at::Tensor>& tensors;
    size_t next = 0;
  } putter(tensors);
  tree::walk(value, putter);
}
template <class T>
T put_back(T value, const std::vector<at::Tensor>& tensors) {
  put_in(value, tensors);
  return value;
}

/// Whether a gathered value needs a different type because it is a number or an
/// array of numbers.
template <class T>
struct IsNarrow
    : std::bool_constant<
          tree::detail::Number<T> ||
          (tree::detail::NumberRow<T> && !tree::detail::Growing<T>)> {};
template <class T>
inline constexpr bool is_known_map = false;
template <class K, class V, class... Rest>
inline constexpr bool is_known_map<std::map<K, V, Rest...>> = true;
template <class K, class V, class... Rest>
inline constexpr bool is_known_map<std::unordered_map<K, V, Rest...>> = true;

/// Returns the same tree with a vector instead of each number, so that it can
/// contain the numbers of all ranks.
template <class T>
auto widen(const T& value) {
  if constexpr (!tree::detail::has_leaf<T, IsNarrow>()) {
    return value;
  } else if constexpr (tree::detail::Number<T>) {
    return std::vector<T>{value};
  } else if constexpr (tree::detail::NumberRow<T>) {
    return std::vector<typename T::value_type>(value.begin(), value.end());
  } else if constexpr (tree::detail::is_optional<T>) {
    std::optional<decltype(widen(*value))> widened;
    if (value) {
      widened = widen(*value);
    }
    return widened;
  } else if constexpr (is_known_map<T>) {
    using Mapped = decltype(widen(value.begin()->second));
    std::map<typename T::key_type, Mapped> widened;
    for (const auto& [key, element] : value) {
      widened.emplace(key, widen(element));
    }
    return widened;
  } else if constexpr (tree::detail::Sequence<T>) {
    std::vector<decltype(widen(*value.begin()))> widened;
    for (const auto& element : value) {
      widened.push_back(widen(element));
    }
    return widened;
  } else if constexpr (tree::detail::TupleLike<T>) {
    return std::apply(
        [](const auto&... elements) {
          if constexpr (sizeof...(elements) == 2) {
            return std::pair(widen(elements)...);
          } else {
            return std::tuple(widen(elements)...);
          }
        },
        value);
  } else {
    static_assert(
        !tree::detail::has_leaf<T, IsNarrow>(),
        "the members of this struct cannot hold gathered numbers: gather the "
        "members separately, or make them tensors or vectors");
  }
}

ACCELERATE_API std::vector<at::Tensor> all_gather(
    const ProcessGroup& group,
    const Leaves& leaves);
ACCELERATE_API std::optional<std::vector<at::Tensor>>
gather_to(const ProcessGroup& group, const Leaves& leaves, int root);
ACCELERATE_API std::vector<at::Tensor>
reduce(const ProcessGroup& group, const Leaves& leaves, ReduceOp op);
ACCELERATE_API void
broadcast(const ProcessGroup& group, const Leaves& leaves, int root);
ACCELERATE_API std::vector<at::Tensor>
scatter(const ProcessGroup& group, const Leaves& leaves, int root);
ACCELERATE_API std::vector<at::Tensor> pad_across_processes(
    const ProcessGroup& group,
    const Leaves& leaves,
    int64_t dim,
    double pad_index,
    bool pad_first);

} // namespace accelerate::detail
