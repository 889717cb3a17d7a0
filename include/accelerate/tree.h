// SPDX-License-Identifier: Apache-2.0
// Nested tensors: one walk over tensors, containers and a user's own structs.
//
// A tree is a tensor, an optional, vector, array, pair, tuple or map of trees,
// `torch::data::Example`, or a struct that lists its members in one function
// found by argument-dependent lookup:
//
//     struct Batch {
//       torch::Tensor input, target;
//     };
//     inline auto tensor_fields(Batch& b) {
//       return std::tie(b.input, b.target);
//     }
//
// Everything else (numbers, strings) is a leaf that walks pass over.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

template <class T>
concept HasTensorFields = requires(T& value) {
  tensor_fields(value);
};

namespace tree {

/// Sees a tree in a fixed order: members as listed, map entries by key.
class ACCELERATE_API Visitor {
 public:
  virtual ~Visitor() = default;
  virtual void tensor(at::Tensor& value) = 0;
  /// Around the parts of a container; `label` is its kind and size.
  virtual void enter(std::string_view /*label*/, size_t /*size*/) {}
  virtual void leave() {}
};

namespace detail {

template <class T>
concept Map = requires(T& m) {
  typename T::key_type;
  typename T::mapped_type;
  m.begin();
};
template <class T>
concept Sequence = requires(T& s) {
  s.begin();
  s.end();
  s.size();
}
&&!Map<T> && !std::is_convertible_v<T, std::string_view>;
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
}
&&!Sequence<T>;
/// `torch::data::Example`: `data` and `target`, without its header.
template <class T>
concept ExampleLike = requires(T& e) {
  typename T::DataType;
  typename T::TargetType;
  e.data;
  e.target;
};
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

} // namespace detail

/// Shows every tensor of `value` to `visitor`.
template <class T>
void walk(T& value, Visitor& visitor) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visitor.tensor(value);
  } else if constexpr (HasTensorFields<T>) {
    auto fields = tensor_fields(value);
    walk(fields, visitor);
  } else if constexpr (detail::is_optional<T>) {
    visitor.enter("optional", value.has_value() ? 1 : 0);
    if (value) {
      walk(*value, visitor);
    }
    visitor.leave();
  } else if constexpr (detail::Map<T>) {
    // By key, so that hash maps of two ranks are walked alike.
    std::vector<typename T::value_type*> entries;
    for (auto& entry : value) {
      entries.push_back(&entry);
    }
    std::sort(entries.begin(), entries.end(), [](auto* a, auto* b) {
      return a->first < b->first;
    });
    visitor.enter("map", entries.size());
    for (auto* entry : entries) {
      if constexpr (std::is_convertible_v<
                        typename T::key_type,
                        std::string_view>) {
        visitor.enter(entry->first, 1);
        walk(entry->second, visitor);
        visitor.leave();
      } else {
        walk(entry->second, visitor);
      }
    }
    visitor.leave();
  } else if constexpr (detail::ExampleLike<T>) {
    visitor.enter("tuple", 2);
    walk(value.data, visitor);
    walk(value.target, visitor);
    visitor.leave();
  } else if constexpr (detail::Sequence<T>) {
    visitor.enter("list", value.size());
    for (auto& element : value) {
      walk(element, visitor);
    }
    visitor.leave();
  } else if constexpr (detail::TupleLike<T>) {
    visitor.enter("tuple", std::tuple_size_v<T>);
    std::apply([&](auto&... parts) { (walk(parts, visitor), ...); }, value);
    visitor.leave();
  }
}

/// Calls `f(at::Tensor&)` for every tensor.
template <class T, class F>
void for_each(T& value, F&& f) {
  struct Caller final : Visitor {
    explicit Caller(F& f) : f(f) {}
    void tensor(at::Tensor& t) override { f(t); }
    F& f;
  } caller(f);
  walk(value, caller);
}

/// The same tree with each tensor `t` replaced by `f(t)`.
template <class T, class F>
T map(T value, F&& f) {
  for_each(value, [&](at::Tensor& t) { t = f(std::as_const(t)); });
  return value;
}

/// The tensors in walking order. They share storage with the tree's.
template <class T>
std::vector<at::Tensor> flatten(const T& value) {
  std::vector<at::Tensor> tensors;
  for_each(const_cast<T&>(value), [&](at::Tensor& t) { tensors.push_back(t); });
  return tensors;
}

/// Puts `tensors` (as many as `flatten` gives) in place of the tree's own.
template <class T>
T unflatten(T value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for_each(value, [&](at::Tensor& t) { t = tensors.at(next++); });
  return value;
}

/// Writes containers, sizes and string keys as text: `tuple2(T,map1(a1(T)))`.
/// Equal texts mean that one rank's tensors fit another rank's tree.
class ACCELERATE_API StructureWriter final : public Visitor {
 public:
  void tensor(at::Tensor& value) override;
  void enter(std::string_view label, size_t size) override;
  void leave() override;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

template <class T>
std::string structure(const T& value) {
  StructureWriter writer;
  walk(const_cast<T&>(value), writer);
  return writer.text();
}

} // namespace tree
} // namespace accelerate
