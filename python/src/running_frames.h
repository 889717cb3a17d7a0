// SPDX-License-Identifier: Apache-2.0
// Reads the frames of a Python thread from another thread while it runs.
#pragma once

#include <string>

#include "python/src/binders.h"

namespace accelerate::python {

/// Returns, for each frame of `thread`, innermost first, the file, function,
/// line, an identifier of the call (two numbers), and variables. If the name of
/// the file ends with `collectives_file`, these are all variables. In the
/// innermost frame, they are the variables of type `handle`. The result is
/// consistent, and does not extend the lifetime of a frame.
pybind11::list running_frames(
    unsigned long thread,
    const std::string& collectives_file,
    const pybind11::type& handle);

} // namespace accelerate::python
