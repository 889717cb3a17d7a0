// SPDX-License-Identifier: Apache-2.0
// The lock of an interpreter that this process runs in, such as Python's.
#pragma once

#include "accelerate/export.h"

namespace accelerate {

struct ScriptLock {
  /// Lets go of it where this thread holds it; what `take` needs to have it
  /// again, nothing where it does not.
  void* (*release)() = nullptr;
  void (*take)(void* released) = nullptr;
};

/// From now on, for all threads; before any group is made.
ACCELERATE_API void set_script_lock(ScriptLock lock);

/// As long as it lives, this thread does not hold the lock. Whoever speaks to
/// other ranks must not: a thread of Gloo's that frees a tensor of the script
/// waits for the lock while it keeps the mutex of the queue that every
/// collective passes.
class WithoutScriptLock {
 public:
  WithoutScriptLock();
  ~WithoutScriptLock();
  WithoutScriptLock(const WithoutScriptLock&) = delete;
  WithoutScriptLock& operator=(const WithoutScriptLock&) = delete;

 private:
  void* released_ = nullptr;
};

} // namespace accelerate
