// SPDX-License-Identifier: Apache-2.0
// Saved state for tests.
#pragma once

#include <ATen/ATen.h>

#include "accelerate/state/state_dict.h"

namespace accelerate::testing {

struct CopyValue {
  StateValue operator()(const at::Tensor& held) const { return held.clone(); }
  StateValue operator()(TensorSlice held) const {
    held.values = held.values.clone();
    return held;
  }
  template <class Plain>
  StateValue operator()(const Plain& held) const {
    return held;
  }
};

/// The current values: tensors of a `StateDict` are shared.
inline StateDict copy_of(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, value] : state) {
    copy.set(name, std::visit(CopyValue{}, value));
  }
  return copy;
}

} // namespace accelerate::testing
