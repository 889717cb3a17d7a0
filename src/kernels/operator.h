// SPDX-License-Identifier: Apache-2.0
// What the operators of this module share: how the dispatcher knows them, and
// what they compute in.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "base/str.h"

namespace accelerate::kernels {

/// Looked up by name once, where the result is kept in a static.
template <class Function>
c10::TypedOperatorHandle<Function> typed_operator(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .template typed<Function>();
}

/// As errors name it.
inline std::string described(const at::Tensor& tensor) {
  return tensor.defined()
             ? str_cat(c10::toString(tensor.scalar_type()), tensor.sizes())
             : std::string("nothing");
}

/// Sums and statistics are computed in it, whatever type the numbers have.
inline at::ScalarType exact_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

} // namespace accelerate::kernels
