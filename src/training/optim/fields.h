// SPDX-License-Identifier: Apache-2.0
// Fields of options and state by name. Each struct is described once, and both
// reading and writing use this description.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "accelerate/error.h"
#include "accelerate/state/state_dict.h"
#include "core/base/str.h"

namespace accelerate::optim {

/// Specialised for each struct: `visit(self, visitor)` calls the visitor with
/// the name of each field and the field.
template <class T>
struct Fields;

/// The shape of a state tensor relative to its parameter.
enum class StateShape { kParameter, kScalar, kRow, kColumn };
/// Whether a saved state may lack the tensor.
enum class Presence { kAlways, kSometimes };

std::vector<int64_t> shape_for(StateShape shape, const at::Tensor& parameter);

class FieldWriter {
 public:
  template <class T>
  void operator()(const std::string& name, const T& value) {
    if constexpr (std::is_enum_v<T>) {
      state_.set(name, static_cast<int64_t>(value));
    } else {
      state_.set(name, value);
    }
  }
  template <class T>
  void operator()(const std::string& name, const std::optional<T>& value) {
    if (value) {
      (*this)(name, *value);
    }
  }
  template <class A, class B>
  void operator()(const std::string& name, const std::pair<A, B>& value) {
    (*this)(name + ".0", value.first);
    (*this)(name + ".1", value.second);
  }
  template <class A, class B>
  void operator()(const std::string& name, const std::tuple<A, B>& value) {
    (*this)(name, std::pair<A, B>(std::get<0>(value), std::get<1>(value)));
  }
  void operator()(const std::string& name, const std::array<double, 3>& value) {
    for (size_t i = 0; i < value.size(); ++i) {
      (*this)(str_cat(name, '.', i), value[i]);
    }
  }
  void operator()(
      const std::string& name,
      const at::Tensor& value,
      StateShape /*shape*/,
      Presence /*presence*/ = Presence::kAlways) {
    if (value.defined()) {
      state_.set(name, value);
    }
  }
  const StateDict& state() const { return state_; }

 private:
  StateDict state_;
};

class FieldReader {
 public:
  /// `parameter` may be undefined if the state has no tensors. `spare` is the
  /// state to replace. Its memory is reused if no other tensor refers to it,
  /// because mapping new pages takes longer than the copy.
  FieldReader(const StateDict& state, at::Tensor parameter, StateDict spare)
      : state_(state),
        parameter_(std::move(parameter)),
        spare_(std::move(spare)) {}

  template <class T>
  void operator()(const std::string& name, T& value) const {
    if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(state_.get<int64_t>(name));
    } else if constexpr (std::is_same_v<T, double>) {
      value = number(name);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      value = count(name);
    } else {
      value = state_.get<T>(name);
    }
  }
  template <class T>
  void operator()(const std::string& name, std::optional<T>& value) const {
    value.reset();
    if (state_.contains(name)) {
      (*this)(name, value.emplace());
    }
  }
  template <class A, class B>
  void operator()(const std::string& name, std::pair<A, B>& value) const {
    (*this)(name + ".0", value.first);
    (*this)(name + ".1", value.second);
  }
  template <class A, class B>
  void operator()(const std::string& name, std::tuple<A, B>& value) const {
    (*this)(name + ".0", std::get<0>(value));
    (*this)(name + ".1", std::get<1>(value));
  }
  void operator()(const std::string& name, std::array<double, 3>& value) const {
    for (size_t i = 0; i < value.size(); ++i) {
      (*this)(str_cat(name, '.', i), value[i]);
    }
  }
  /// Copies the tensor to the parameter's device and memory layout.
  void operator()(
      const std::string& name,
      at::Tensor& value,
      StateShape shape,
      Presence presence = Presence::kAlways) const;

 private:
  /// Also accepts an integer, because Python allows `weight_decay=0`.
  double number(const std::string& name) const;
  /// Also accepts a tensor, because some optimizers store their step count in
  /// one.
  int64_t count(const std::string& name) const;
  /// Also accepts a number, because some optimizers store one.
  at::Tensor tensor(const std::string& name) const;
  /// Memory for the tensor of that name, in the layout of the parameter.
  at::Tensor memory_for(const std::string& name) const;

  const StateDict& state_;
  at::Tensor parameter_;
  StateDict spare_;
};

template <class T>
StateDict write_fields(const T& object) {
  FieldWriter writer;
  Fields<T>::visit(object, writer);
  return writer.state();
}

template <class T>
void read_fields(
    T& object,
    const StateDict& state,
    const at::Tensor& parameter = {},
    StateDict spare = {}) {
  Fields<T>::visit(object, FieldReader(state, parameter, std::move(spare)));
}

} // namespace accelerate::optim
