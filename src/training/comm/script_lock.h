// SPDX-License-Identifier: Apache-2.0
// The lock of an interpreter in this process, such as Python's.
#pragma once

#include "core/base/internal.h"

namespace accelerate {

struct ScriptLock {
  /// Releases the lock if this thread holds it. Returns the value to pass to
  /// `take`. Null if this thread does not hold the lock.
  void* (*release)() = nullptr;
  void (*take)(void* released) = nullptr;
};

/// Sets the lock for all threads. Call it before any group is created.
ACCELERATE_INTERNAL void set_script_lock(ScriptLock lock);

/// During its lifetime, this thread does not hold the lock. Required for
/// communication. Otherwise a deadlock is possible: a Gloo thread that frees a
/// tensor of the script waits for the lock while it holds the mutex of the
/// queue that every collective uses.
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
