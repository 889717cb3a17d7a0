// SPDX-License-Identifier: Apache-2.0
// A `StateDict` as a dictionary of Python's.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "accelerate/state_dict.h"

namespace accelerate::python {

/// Both need the GIL. Throws `UsageError` on values of other types.
pybind11::dict from_state_dict(const StateDict& state);
StateDict to_state_dict(const pybind11::handle& values);

} // namespace accelerate::python
