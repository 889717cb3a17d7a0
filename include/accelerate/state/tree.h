// SPDX-License-Identifier: Apache-2.0
// Trees of tensors: one traversal for tensors, containers and custom structs.
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
// Numbers and sequences of numbers are leaves. Collectives send them as
// tensors, and other traversals skip them. Everything else, such as strings, is
// skipped.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
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

/// A number in a tree, or a sequence of numbers.
class ACCELERATE_API Numbers {
 public:
  virtual ~Numbers() = default;
  /// Returns the values as a tensor on the CPU with zero or one dimension.
  /// Integers become int64, so that sums of small types do not overflow. Throws
  /// `UsageError` if an unsigned value does not fit.
  virtual at::Tensor tensor() const = 0;
  /// Throws `UsageError` if a value does not fit into its type, or if the
  /// number of values differs from that of a fixed-size type.
  virtual void assign(const at::Tensor& values) = 0;
};

/// Visits a tree in a fixed order: members in the order of the list, and map
/// entries by key.
class ACCELERATE_API Visitor {
 public:
  virtual ~Visitor() = default;
  virtual void tensor(at::Tensor& value) = 0;
  virtual void numbers(Numbers& /*value*/) {}
  /// Called before and after the parts of a container. `label` is the kind of
  /// the container, or the key of a map entry. `size` is the number of parts.
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
concept TupleLike = !Sequence<T> && requires {
  std::tuple_size<T>::value;
};
/// Matches `torch::data::Example`, which has members `data` and `target`,
/// without including its header.
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

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_const_v<T> &&
                 !std::is_same_v<T, long double>;
/// A writable sequence of numbers.
template <class T>
concept NumberRow = Sequence<T> && Number<typename T::value_type> &&
    requires(T& s) {
  *s.begin() = typename T::value_type{};
};
template <class T>
concept Growing = requires(T& s) {
  s.resize(size_t{});
  typename T::value_type;
};

/// The type that a number is sent as.
template <Number T>
using Carrier = std::conditional_t<
    std::is_same_v<T, bool>,
    uint8_t,
    std::conditional_t<std::is_integral_v<T>, int64_t, T>>;
template <Number T>
inline constexpr at::ScalarType carrier_dtype =
    std::is_same_v<T, bool>     ? at::kBool
    : std::is_integral_v<T>     ? at::kLong
    : std::is_same_v<T, double> ? at::kDouble
                                : at::kFloat;
/// These functions convert `count` numbers of type `dtype` to a new tensor, and
/// back. A `count` of -1 means a single number without a dimension.
ACCELERATE_API at::Tensor
from_numbers(const void* data, int64_t count, at::ScalarType dtype);
ACCELERATE_API void
to_numbers(const at::Tensor& values, at::ScalarType dtype, void* output);
[[noreturn]] ACCELERATE_API void throw_not_fitting(
    const std::string& value,
    size_t num_bytes);
[[noreturn]] ACCELERATE_API void throw_wrong_count(
    int64_t count,
    int64_t expected);

template <Number T>
Carrier<T> to_carrier(T value) {
  if constexpr (std::is_integral_v<T>) {
    if (!std::in_range<int64_t>(+value)) {
      throw_not_fitting(std::to_string(value), sizeof(int64_t));
    }
  }
  return static_cast<Carrier<T>>(value);
}
template <Number T>
T from_carrier(Carrier<T> carried) {
  const auto value = static_cast<T>(carried);
  if constexpr (std::is_integral_v<T>) {
    if (static_cast<Carrier<T>>(value) != carried ||
        (std::is_unsigned_v<T> && std::is_signed_v<Carrier<T>> &&
         carried < 0)) {
      throw_not_fitting(std::to_string(carried), sizeof(T));
    }
  }
  return value;
}

template <Number T>
class OneNumber final : public Numbers {
 public:
  explicit OneNumber(T& value) : value_(value) {}
  at::Tensor tensor() const override {
    const auto carried = to_carrier<T>(value_);
    return from_numbers(&carried, -1, carrier_dtype<T>);
  }
  void assign(const at::Tensor& values) override {
    if (values.numel() != 1) {
      throw_wrong_count(values.numel(), 1);
    }
    Carrier<T> carried{};
    to_numbers(values, carrier_dtype<T>, &carried);
    value_ = from_carrier<T>(carried);
  }

 private:
  T& value_;
};

template <NumberRow T>
class RowOfNumbers final : public Numbers {
 public:
  using Value = typename T::value_type;

  explicit RowOfNumbers(T& row) : row_(row) {}
  at::Tensor tensor() const override {
    std::vector<Carrier<Value>> carried;
    carried.reserve(row_.size());
    for (const Value value : row_) {
      carried.push_back(to_carrier<Value>(value));
    }
    return from_numbers(
        carried.data(),
        static_cast<int64_t>(carried.size()),
        carrier_dtype<Value>);
  }
  void assign(const at::Tensor& values) override {
    std::vector<Carrier<Value>> carried(static_cast<size_t>(values.numel()));
    to_numbers(values, carrier_dtype<Value>, carried.data());
    if constexpr (Growing<T>) {
      row_.resize(carried.size());
    } else if (carried.size() != row_.size()) {
      throw_wrong_count(values.numel(), static_cast<int64_t>(row_.size()));
    }
    auto to = row_.begin();
    for (const auto value : carried) {
      *to++ = from_carrier<Value>(value);
    }
  }

 private:
  T& row_;
};

} // namespace detail

namespace detail {

/// Whether `Is<Element>::value` is true for any part of a tree, recursively.
template <class T, template <class> class Is>
constexpr bool has_leaf();
template <class Tuple, template <class> class Is, size_t... I>
constexpr bool any_has_leaf(std::index_sequence<I...>) {
  return (
      has_leaf<std::remove_cvref_t<std::tuple_element_t<I, Tuple>>, Is>() ||
      ...);
}
template <class T, template <class> class Is>
constexpr bool has_leaf() {
  if constexpr (Is<T>::value) {
    return true;
  } else if constexpr (NumberRow<T>) {
    return false;
  } else if constexpr (HasTensorFields<T>) {
    using Fields = decltype(tensor_fields(std::declval<T&>()));
    return any_has_leaf<Fields, Is>(
        std::make_index_sequence<std::tuple_size_v<Fields>>());
  } else if constexpr (Map<T>) {
    return has_leaf<typename T::mapped_type, Is>();
  } else if constexpr (ExampleLike<T>) {
    return has_leaf<typename T::DataType, Is>() ||
           has_leaf<typename T::TargetType, Is>();
  } else if constexpr (is_optional<T>) {
    return has_leaf<typename T::value_type, Is>();
  } else if constexpr (Sequence<T>) {
    using Element = decltype(*std::declval<T&>().begin());
    return has_leaf<std::remove_cvref_t<Element>, Is>();
  } else if constexpr (TupleLike<T>) {
    return any_has_leaf<T, Is>(
        std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

template <class T>
struct IsValue
    : std::bool_constant<
          std::is_same_v<T, at::Tensor> || Number<T> || NumberRow<T>> {};

} // namespace detail

/// Whether a tree of this type may contain a tensor or a number.
template <class T>
concept HoldsValues = detail::has_leaf<T, detail::IsValue>();

/// Passes every tensor and number of `value` to `visitor`.
template <class T>
void walk(T& value, Visitor& visitor) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visitor.tensor(value);
  } else if constexpr (detail::Number<T>) {
    detail::OneNumber<T> number(value);
    visitor.numbers(number);
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
    // Sorted by key, so that hash maps are visited in the same order on all
    // ranks.
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
  } else if constexpr (detail::NumberRow<T>) {
    detail::RowOfNumbers<T> row(value);
    visitor.numbers(row);
  } else if constexpr (detail::Sequence<T>) {
    visitor.enter("list", value.size());
    for (auto& element : value) {
      walk(element, visitor);
    }
    visitor.leave();
  } else if constexpr (detail::TupleLike<T>) {
    visitor.enter("tuple", std::tuple_size_v<T>);
    std::apply(
        [&](auto&... elements) { (walk(elements, visitor), ...); }, value);
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

/// Returns the same tree with each tensor `t` replaced with `f(t)`.
template <class T, class F>
T map(T value, F&& f) {
  for_each(value, [&](at::Tensor& t) { t = f(std::as_const(t)); });
  return value;
}

/// Returns the tensors in visiting order. They share storage with those of the
/// tree.
template <class T>
std::vector<at::Tensor> flatten(const T& value) {
  std::vector<at::Tensor> tensors;
  for_each(const_cast<T&>(value), [&](at::Tensor& t) { tensors.push_back(t); });
  return tensors;
}

/// Replaces the tensors of a tree with `tensors` (as many as `flatten`
/// returns).
template <class T>
T unflatten(T value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for_each(value, [&](at::Tensor& t) { t = tensors.at(next++); });
  return value;
}

/// Describes containers, sizes and string keys in a string such as
/// `tuple2(N,map1(a1(T)))`. If two ranks have the same string, the tensors of
/// one rank fit into the tree of the other.
class ACCELERATE_API StructureWriter final : public Visitor {
 public:
  void tensor(at::Tensor& value) override;
  void numbers(Numbers& value) override;
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
