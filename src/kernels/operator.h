// SPDX-License-Identifier: Apache-2.0
// The operators of this module, as the dispatcher knows them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace accelerate::kernels {

/// Looked up by name once, where the result is kept in a static.
template <class Function>
c10::TypedOperatorHandle<Function> typed_operator(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .template typed<Function>();
}

} // namespace accelerate::kernels
