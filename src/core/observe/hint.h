// SPDX-License-Identifier: Apache-2.0
// Hints in error messages: Python for Python programs, C++ for others.
#pragma once

#include "core/observe/script_stack.h"

namespace accelerate {

/// `python` if the program is written in Python, else `cpp`.
inline const char* hint(const char* cpp, const char* python) {
  return has_script_stack() ? python : cpp;
}

} // namespace accelerate
