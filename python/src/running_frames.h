// SPDX-License-Identifier: Apache-2.0
// Reads the frames of a Python thread from another thread while it runs.
#pragma once

#include <string>

#include "python/src/binders.h"

namespace accelerate::python {

/// For each frame of `thread`, innermost first: file, function, line, an
/// identifier of this call (two numbers), and variables. These are all
/// variables if the file ends with `collectives_file`; in the innermost frame,
/// they are the variables of type `handle`. Consistent, and does not extend the
/// lifetime of a frame.
pybind11::list running_frames(
    unsigned long thread,
    const std::string& collectives_file,
    const pybind11::type& handle);

} // namespace accelerate::python
