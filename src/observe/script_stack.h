// SPDX-License-Identifier: Apache-2.0
// The stack of an interpreter that this process runs in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "accelerate/export.h"
#include "observe/report.h"

namespace accelerate {

struct ScriptStack {
  Stack stack = {};
  /// A collective that the script is in, called without us:
  /// "all_reduce float32[4]".
  std::string operation = {};
  /// Tells this call from another at the same place.
  uint64_t call = 0;
};

using TakeScriptStack = std::function<ScriptStack()>;
/// From now on the stack of the main thread comes from there; called by a
/// thread of its own, which may have to wait for the interpreter.
ACCELERATE_API void set_script_stack(TakeScriptStack take);
/// Until nobody asks the interpreter any more.
ACCELERATE_API void drop_script_stack();

ACCELERATE_API bool has_script_stack();
/// Nothing where there is no interpreter, or it does not answer within a
/// second: a thread of it does not let others run.
ACCELERATE_API std::optional<ScriptStack> script_stack();

} // namespace accelerate
