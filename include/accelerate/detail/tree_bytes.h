// SPDX-License-Identifier: Apache-2.0
// Converts trees to bytes, to send a batch or an object to another rank.
//
// Besides the trees of `tree.h`, this supports numbers, enumerations and
// strings. A struct is sent as exactly the members that `tensor_fields` lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/state/tree.h"

namespace accelerate::tree {

/// Collects values and tensors. The data of tensors is copied only by `write`.
/// The bytes can be read only on a machine with the same byte order.
class ACCELERATE_API ByteWriter {
 public:
  void bytes(const void* data, size_t size);
  void count(size_t value);
  void tensor(const at::Tensor& value);

  /// The number of bytes that `write` fills. Tensors are aligned to 16 bytes.
  int64_t size() const;
  void write(char* output) const;

 private:
  std::string small_;
  std::vector<at::Tensor> tensors_;
};

/// Reads the bytes of a `ByteWriter`. Throws `CommError` if they end too early.
class ACCELERATE_API ByteReader {
 public:
  /// `data` must be aligned to 16 bytes. Tensors point into it and keep `owner`
  /// alive.
  ByteReader(std::shared_ptr<const void> owner, char* data, int64_t size);

  void bytes(void* output, size_t size);
  size_t count();
  at::Tensor tensor();

 private:
  std::shared_ptr<const void> owner_;
  char* data_;
  int64_t size_;
  int64_t small_ = 0;
  int64_t small_end_ = 0;
  int64_t tensors_ = 0;
};

namespace detail {

/// Whether `write` and `read` support `T`, checked recursively.
template <class T, bool kTensors>
constexpr bool is_bytes();
template <class Tuple, bool kTensors, size_t... I>
constexpr bool are_bytes(std::index_sequence<I...>) {
  return (
      is_bytes<
          std::remove_cvref_t<std::tuple_element_t<I, Tuple>>,
          kTensors>() &&
      ...);
}
template <class Tuple, bool kTensors>
constexpr bool tuple_is_bytes() {
  return are_bytes<Tuple, kTensors>(
      std::make_index_sequence<std::tuple_size_v<Tuple>>());
}

template <class T, bool kTensors>
constexpr bool is_bytes() {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return kTensors;
  } else if constexpr (
      std::is_same_v<T, std::string> || std::is_arithmetic_v<T> ||
      std::is_enum_v<T>) {
    return true;
  } else if constexpr (HasTensorFields<T>) {
    return std::is_default_constructible_v<T> &&
           tuple_is_bytes<
               decltype(tensor_fields(std::declval<T&>())),
               kTensors>();
  } else if constexpr (is_optional<T>) {
    return is_bytes<typename T::value_type, kTensors>();
  } else if constexpr (Map<T>) {
    return is_bytes<typename T::key_type, kTensors>() &&
           is_bytes<typename T::mapped_type, kTensors>();
  } else if constexpr (ExampleLike<T>) {
    return is_bytes<typename T::DataType, kTensors>() &&
           is_bytes<typename T::TargetType, kTensors>();
  } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
    return false;
  } else if constexpr (Sequence<T>) {
    return Growing<T> && is_bytes<typename T::value_type, kTensors>();
  } else if constexpr (TupleLike<T>) {
    return tuple_is_bytes<T, kTensors>();
  } else {
    return false;
  }
}

} // namespace detail

/// A type whose values can be sent to another rank.
template <class T>
concept Portable = detail::is_bytes<T, true>();
/// A portable type without tensors.
template <class T>
concept PlainObject = detail::is_bytes<T, false>();

template <class T>
void write(const T& value, ByteWriter& out) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    out.tensor(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    out.count(value.size());
    out.bytes(value.data(), value.size());
  } else if constexpr (HasTensorFields<T>) {
    std::apply(
        [&](auto&... elements) { (write(elements, out), ...); },
        tensor_fields(const_cast<T&>(value)));
  } else if constexpr (detail::is_optional<T>) {
    out.count(value ? 1 : 0);
    if (value) {
      write(*value, out);
    }
  } else if constexpr (detail::Map<T>) {
    out.count(value.size());
    for (const auto& [key, mapped] : value) {
      write(key, out);
      write(mapped, out);
    }
  } else if constexpr (detail::ExampleLike<T>) {
    write(value.data, out);
    write(value.target, out);
  } else if constexpr (detail::Sequence<T>) {
    out.count(value.size());
    for (const auto& element : value) {
      write(element, out);
    }
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([&](auto&... elements) { (write(elements, out), ...); }, value);
  } else {
    out.bytes(&value, sizeof(value));
  }
}

template <class T>
void read(T& value, ByteReader& in) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    value = in.tensor();
  } else if constexpr (std::is_same_v<T, std::string>) {
    value.resize(in.count());
    in.bytes(value.data(), value.size());
  } else if constexpr (HasTensorFields<T>) {
    std::apply(
        [&](auto&... elements) { (read(elements, in), ...); },
        tensor_fields(value));
  } else if constexpr (detail::is_optional<T>) {
    value.reset();
    if (in.count() > 0) {
      read(value.emplace(), in);
    }
  } else if constexpr (detail::Map<T>) {
    value.clear();
    for (size_t left = in.count(); left > 0; --left) {
      typename T::key_type key{};
      read(key, in);
      read(value[key], in);
    }
  } else if constexpr (detail::ExampleLike<T>) {
    read(value.data, in);
    read(value.target, in);
  } else if constexpr (detail::Sequence<T>) {
    const size_t size = in.count();
    if constexpr (detail::Growing<T>) {
      value.resize(size);
    }
    for (auto& element : value) {
      read(element, in);
    }
  } else if constexpr (detail::TupleLike<T>) {
    std::apply([&](auto&... elements) { (read(elements, in), ...); }, value);
  } else {
    in.bytes(&value, sizeof(value));
  }
}

ACCELERATE_API std::string finish(const ByteWriter& writer);
/// Returns a reader that owns a copy of `bytes`.
ACCELERATE_API ByteReader open_copy(const std::string& bytes);

template <Portable T>
std::string to_bytes(const T& value) {
  ByteWriter writer;
  write(value, writer);
  return finish(writer);
}

template <Portable T>
T from_bytes(const std::string& bytes) {
  ByteReader reader = open_copy(bytes);
  T value{};
  read(value, reader);
  return value;
}

} // namespace accelerate::tree
