// SPDX-License-Identifier: Apache-2.0
// Hints of error messages, in the language of the user's program.
#pragma once

#include "observe/script_stack.h"

namespace accelerate {

/// `python` if the program is written in Python, else `cpp`.
inline const char* hint(const char* cpp, const char* python) {
  return has_script_stack() ? python : cpp;
}

} // namespace accelerate
