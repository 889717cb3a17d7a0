// SPDX-License-Identifier: Apache-2.0
// The stack of an interpreter in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/base/internal.h"
#include "core/observe/report.h"

namespace accelerate {

struct ScriptStack {
  Stack stack = {};
  /// The current collective of the script, if it was called without us:
  /// "all_reduce float32[4]".
  std::string operation = {};
  /// Distinguishes this call from another at the same position.
  uint64_t call = 0;
};

using TakeScriptStack = std::function<ScriptStack()>;
/// Makes `take` the source of the main thread's stack. It is called on a
/// separate thread, because it may have to wait for the interpreter.
ACCELERATE_INTERNAL void set_script_stack(TakeScriptStack take);
/// Blocks until the interpreter is no longer queried.
ACCELERATE_INTERNAL void drop_script_stack();

ACCELERATE_INTERNAL bool has_script_stack();
/// Empty if there is no interpreter, or it does not answer within a second
/// because one of its threads does not release it.
ACCELERATE_INTERNAL std::optional<ScriptStack> script_stack();

} // namespace accelerate
