// SPDX-License-Identifier: Apache-2.0
// The frames of a thread of Python's that goes on while others look.
#pragma once

#include <string>

#include "python/src/binders.h"

namespace accelerate::python {

/// Of each frame of `thread`, the innermost first: file, function, line, what
/// tells this call from another (two numbers), and the variables asked for:
/// all where the file ends with `collectives_file`, and what the innermost
/// frame sees of type `handle`. Nothing of it changes while it is taken, and no
/// frame lives longer for it.
pybind11::list running_frames(
    unsigned long thread,
    const std::string& collectives_file,
    const pybind11::type& handle);

} // namespace accelerate::python
