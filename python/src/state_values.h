// SPDX-License-Identifier: Apache-2.0
// Converts a `StateDict` to a Python dictionary and back.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "accelerate/state/state_dict.h"

namespace accelerate::python {

/// Both functions need the GIL and throw `UsageError` on values of other types.
pybind11::dict from_state_dict(const StateDict& state);
StateDict to_state_dict(const pybind11::handle& values);

} // namespace accelerate::python
