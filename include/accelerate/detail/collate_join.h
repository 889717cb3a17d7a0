// SPDX-License-Identifier: Apache-2.0
// Implementation of `collate.h`, which states the rules.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/state/tree.h"

namespace accelerate {

struct PaddingOptions; // collate.h

namespace detail {

/// Joins the leaves of samples, with padding if options are given.
class ACCELERATE_API LeafJoiner {
 public:
  explicit LeafJoiner(const PaddingOptions* padding = nullptr)
      : padding_(padding) {}

  /// `name` is the name of the field, and `path` is its position, for messages.
  at::Tensor join(
      const std::vector<at::Tensor>& values,
      const std::string& name,
      const std::string& path);
  at::Tensor join(const std::vector<bool>& values);
  at::Tensor join(const std::vector<int64_t>& values);
  at::Tensor join(const std::vector<float>& values);
  at::Tensor join(const std::vector<double>& values);

  /// The mask of the field that was joined under the name `mask_of`. Undefined
  /// if there was no such field or `name` is not the mask's name.
  at::Tensor mask(const std::string& name) const;
  /// The name of the mask to add. Empty without padding.
  std::string mask_name() const;

  /// Created for each struct or map, because each of them has its own mask.
  class MaskScope {
   public:
    explicit MaskScope(LeafJoiner& leaves)
        : leaves_(leaves), outer_(std::exchange(leaves.mask_, {})) {}
    ~MaskScope() { leaves_.mask_ = std::move(outer_); }
    MaskScope(const MaskScope&) = delete;
    MaskScope& operator=(const MaskScope&) = delete;

   private:
    LeafJoiner& leaves_;
    at::Tensor outer_;
  };

 private:
  void make_mask(const std::vector<at::Tensor>& values, int64_t length);

  const PaddingOptions* padding_;
  at::Tensor mask_;
};

[[noreturn]] ACCELERATE_API void throw_uneven(
    const std::string& path,
    size_t sample,
    const std::string& got,
    const std::string& expected);
ACCELERATE_API void check_samples(size_t num_samples);
ACCELERATE_API std::string field_path(
    const std::string& path,
    const std::string& name);

template <class T>
concept Number = std::is_arithmetic_v<T>;
template <class T>
concept Text = std::is_convertible_v<const T&, std::string_view>;
template <class T>
concept Numbers = tree::detail::Sequence<T> && Number<typename T::value_type>;
template <class T>
concept NamesItsBatch = requires {
  typename T::Batch;
};
template <class T>
concept NamesItsFields = requires(const T& value) {
  field_names(value);
};
template <class>
inline constexpr bool cannot_be_collated = false;

/// The type that stores numbers until they become a tensor.
template <Number T>
using Kept = std::conditional_t<
    std::is_same_v<T, bool> || std::is_floating_point_v<T>,
    std::conditional_t<std::is_same_v<T, long double>, double, T>,
    int64_t>;

[[noreturn]] ACCELERATE_API void throw_too_large(uint64_t value);
template <Number T>
Kept<T> keep(T value) {
  if constexpr (std::is_integral_v<T>) {
    if (!std::in_range<int64_t>(+value)) {
      throw_too_large(static_cast<uint64_t>(value));
    }
  }
  return static_cast<Kept<T>>(value);
}

template <class T>
constexpr auto collated_type();

} // namespace detail

/// The batch type that `collate` makes from samples of type `T`.
template <class T>
using Collated =
    typename decltype(detail::collated_type<std::remove_cv_t<T>>())::type;

namespace detail {

template <class T>
struct CollatedElements;
template <class... Ts>
struct CollatedElements<std::tuple<Ts...>> {
  using type = std::tuple<Collated<std::remove_reference_t<Ts>>...>;
};
template <class A, class B>
struct CollatedElements<std::pair<A, B>> {
  using type = std::pair<Collated<A>, Collated<B>>;
};
template <class T>
struct CollatedExample;
template <template <class, class> class E, class A, class B>
struct CollatedExample<E<A, B>> {
  using type = E<Collated<A>, Collated<B>>;
};
template <class T>
struct Unreferenced;
template <class... Ts>
struct Unreferenced<std::tuple<Ts...>> {
  using type = std::tuple<std::remove_cvref_t<Ts>...>;
};

template <class T>
constexpr auto collated_fields() {
  using Fields = decltype(tensor_fields(std::declval<T&>()));
  using Joined = typename CollatedElements<Fields>::type;
  if constexpr (NamesItsBatch<T>) {
    return std::type_identity<typename T::Batch>{};
  } else if constexpr (std::is_same_v<
                           Joined,
                           typename Unreferenced<Fields>::type>) {
    return std::type_identity<T>{};
  } else {
    return std::type_identity<Joined>{};
  }
}

template <class T>
constexpr auto collated_type() {
  namespace kinds = tree::detail;
  if constexpr (std::is_same_v<T, at::Tensor> || Number<T> || Numbers<T>) {
    return std::type_identity<at::Tensor>{};
  } else if constexpr (Text<T>) {
    return std::type_identity<std::vector<std::string>>{};
  } else if constexpr (HasTensorFields<T>) {
    return collated_fields<T>();
  } else if constexpr (kinds::is_optional<T>) {
    return std::type_identity<
        std::optional<Collated<typename T::value_type>>>{};
  } else if constexpr (kinds::Map<T>) {
    return std::type_identity<
        std::map<typename T::key_type, Collated<typename T::mapped_type>>>{};
  } else if constexpr (kinds::Sequence<T>) {
    using Joined = std::vector<Collated<typename T::value_type>>;
    // A class derived from such a vector, such as `TensorRow`, keeps its type.
    return std::type_identity<
        std::conditional_t<std::derived_from<T, Joined>, T, Joined>>{};
  } else if constexpr (kinds::ExampleLike<T>) {
    return std::type_identity<typename CollatedExample<T>::type>{};
  } else if constexpr (kinds::TupleLike<T>) {
    return std::type_identity<typename CollatedElements<T>::type>{};
  } else {
    static_assert(
        cannot_be_collated<T>,
        "samples of this type cannot be collated: define `tensor_fields` for "
        "the type (accelerate/data/collate.h), or pass a collate function to "
        "the loader");
  }
}

template <class T>
Collated<T> join(
    const std::vector<const T*>& values,
    LeafJoiner& leaves,
    const std::string& name,
    const std::string& path);

/// Joins one part of every sample, selected by `field_of(sample)`.
template <class T, class F>
auto join_field(
    const std::vector<const T*>& samples,
    LeafJoiner& leaves,
    const std::string& name,
    const std::string& path,
    F&& field_of) {
  using Field = std::remove_cvref_t<decltype(field_of(*samples[0]))>;
  std::vector<const Field*> values;
  values.reserve(samples.size());
  for (const T* sample : samples) {
    values.push_back(&field_of(*sample));
  }
  return join(values, leaves, name, field_path(path, name));
}

template <class T>
std::string field_name(const T& value, size_t position) {
  if constexpr (NamesItsFields<T>) {
    return std::string(field_names(value)[position]);
  } else {
    return std::to_string(position);
  }
}

template <class T>
Collated<T> join_fields(
    const std::vector<const T*>& samples,
    LeafJoiner& leaves,
    const std::string& path) {
  // `tensor_fields` takes a mutable reference, but nothing is modified.
  const auto fields = [](const T& value) {
    return tensor_fields(const_cast<T&>(value));
  };
  using Fields = decltype(fields(*samples[0]));
  const LeafJoiner::MaskScope scope(leaves);
  constexpr size_t kSize = std::tuple_size_v<Fields>;
  Collated<T> batch{};
  if constexpr (std::is_same_v<Collated<T>, T>) {
    batch = *samples[0];
  }
  const auto fill = [&]<class Into, size_t... I>(
                        Into&& into, std::index_sequence<I...>) {
    static_assert(
        std::tuple_size_v<std::remove_cvref_t<Into>> == kSize,
        "`Batch` must list the same number of fields as the sample");
    ((std::get<I>(into) = join_field(
          samples,
          leaves,
          field_name(*samples[0], I),
          path,
          [&](const T& s) -> const auto& { return std::get<I>(fields(s)); })),
     ...);
    const auto add_mask = [&](auto& field, size_t position) {
      if constexpr (std::is_same_v<
                        std::remove_reference_t<decltype(field)>,
                        at::Tensor>) {
        if (!field.defined()) {
          field = leaves.mask(field_name(*samples[0], position));
        }
      }
    };
    (add_mask(std::get<I>(into), I), ...);
  };
  if constexpr (HasTensorFields<Collated<T>>) {
    fill(tensor_fields(batch), std::make_index_sequence<kSize>());
  } else {
    fill(batch, std::make_index_sequence<kSize>());
  }
  return batch;
}

template <class T>
Collated<T> join_map(
    const std::vector<const T*>& samples,
    LeafJoiner& leaves,
    const std::string& path) {
  using Key = typename T::key_type;
  const auto name = [](const Key& key) {
    if constexpr (Text<Key>) {
      return std::string(std::string_view(key));
    } else {
      return std::to_string(key);
    }
  };
  for (size_t i = 1; i < samples.size(); ++i) {
    for (const auto& [key, value] : *samples[0]) {
      if (samples[i]->find(key) == samples[i]->end()) {
        throw_uneven(path, i, "no key " + name(key), "it");
      }
    }
    if (samples[i]->size() != samples[0]->size()) {
      throw_uneven(
          path,
          i,
          std::to_string(samples[i]->size()) + " keys",
          std::to_string(samples[0]->size()));
    }
  }
  const LeafJoiner::MaskScope scope(leaves);
  Collated<T> batch;
  for (const auto& entry : *samples[0]) {
    // A named reference, because not all compilers let lambdas capture
    // structured bindings.
    const auto& key = entry.first;
    batch.emplace(
        key,
        join_field(
            samples, leaves, name(key), path, [&](const T& s) -> const auto& {
              return s.find(key)->second;
            }));
  }
  if constexpr (
      Text<Key> &&
      std::is_same_v<typename Collated<T>::mapped_type, at::Tensor>) {
    auto mask = leaves.mask(leaves.mask_name());
    if (mask.defined()) {
      batch.emplace(leaves.mask_name(), mask); // keeps an existing one
    }
  }
  return batch;
}

template <class T>
Collated<T> join_sequence(
    const std::vector<const T*>& samples,
    LeafJoiner& leaves,
    const std::string& path) {
  for (size_t i = 1; i < samples.size(); ++i) {
    if (samples[i]->size() != samples[0]->size()) {
      throw_uneven(
          path,
          i,
          std::to_string(samples[i]->size()) + " elements",
          std::to_string(samples[0]->size()));
    }
  }
  Collated<T> batch;
  batch.reserve(samples[0]->size());
  for (size_t e = 0; e < samples[0]->size(); ++e) {
    batch.push_back(join_field(
        samples,
        leaves,
        std::to_string(e),
        path,
        [&](const T& s) -> const auto& { return s[e]; }));
  }
  return batch;
}

template <class T>
Collated<T> join_tuple(
    const std::vector<const T*>& samples,
    LeafJoiner& leaves,
    const std::string& path) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    // Braces evaluate from left to right.
    return Collated<T>{join_field(
        samples, leaves, std::to_string(I), path, [
        ](const T& s) -> const auto& { return std::get<I>(s); })...};
  }
  (std::make_index_sequence<std::tuple_size_v<T>>());
}

template <class T>
Collated<T> join_optional(
    const std::vector<const T*>& samples,
    LeafJoiner& leaves,
    const std::string& name,
    const std::string& path) {
  std::vector<const typename T::value_type*> values;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i]->has_value() != samples[0]->has_value()) {
      throw_uneven(
          path,
          i,
          samples[i]->has_value() ? "a value" : "no value",
          samples[0]->has_value() ? "one" : "none");
    }
    if (samples[i]->has_value()) {
      values.push_back(&**samples[i]);
    }
  }
  return values.empty() ? Collated<T>{} : join(values, leaves, name, path);
}

template <class T>
at::Tensor join_numbers(
    const std::vector<const T*>& samples,
    LeafJoiner& leaves,
    const std::string& name,
    const std::string& path) {
  std::vector<at::Tensor> rows;
  rows.reserve(samples.size());
  for (const T* sample : samples) {
    std::vector<Kept<typename T::value_type>> row;
    row.reserve(sample->size());
    for (const typename T::value_type number : *sample) {
      row.push_back(keep(number));
    }
    rows.push_back(leaves.join(row));
  }
  return leaves.join(rows, name, path);
}

template <class T, class Into>
std::vector<Into> copies(const std::vector<const T*>& samples) {
  std::vector<Into> result;
  result.reserve(samples.size());
  for (const T* sample : samples) {
    result.push_back(static_cast<Into>(*sample));
  }
  return result;
}

template <class T>
Collated<T> join(
    const std::vector<const T*>& values,
    LeafJoiner& leaves,
    const std::string& name,
    const std::string& path) {
  namespace kinds = tree::detail;
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return leaves.join(copies<T, at::Tensor>(values), name, path);
  } else if constexpr (Number<T>) {
    std::vector<Kept<T>> numbers;
    numbers.reserve(values.size());
    for (const T* value : values) {
      numbers.push_back(keep(*value));
    }
    return leaves.join(numbers);
  } else if constexpr (Numbers<T>) {
    return join_numbers(values, leaves, name, path);
  } else if constexpr (Text<T>) {
    return copies<T, std::string>(values);
  } else if constexpr (HasTensorFields<T>) {
    return join_fields(values, leaves, path);
  } else if constexpr (kinds::is_optional<T>) {
    return join_optional(values, leaves, name, path);
  } else if constexpr (kinds::Map<T>) {
    return join_map(values, leaves, path);
  } else if constexpr (kinds::Sequence<T>) {
    return join_sequence(values, leaves, path);
  } else if constexpr (kinds::ExampleLike<T>) {
    auto data = join_field(
        values, leaves, "data", path, [](const T& s) -> const auto& {
          return s.data;
        });
    return {
        std::move(data),
        join_field(
            values, leaves, "target", path, [](const T& s) -> const auto& {
              return s.target;
            })};
  } else {
    return join_tuple(values, leaves, path);
  }
}

template <class T>
Collated<T> join_samples(
    const std::vector<T>& samples,
    const PaddingOptions* padding) {
  check_samples(samples.size());
  LeafJoiner leaves(padding);
  if constexpr (std::is_same_v<T, bool>) {
    return leaves.join(samples); // A vector of bools has no addressable
                                 // elements
  } else {
    std::vector<const T*> values;
    values.reserve(samples.size());
    for (const T& sample : samples) {
      values.push_back(&sample);
    }
    return join(values, leaves, "", "");
  }
}

} // namespace detail

} // namespace accelerate
