// SPDX-License-Identifier: Apache-2.0
#include "training/comm/script_lock.h"

namespace accelerate {
namespace {

ScriptLock script_lock;

} // namespace

void set_script_lock(ScriptLock lock) {
  script_lock = lock;
}

WithoutScriptLock::WithoutScriptLock() {
  if (script_lock.release != nullptr) {
    released_ = script_lock.release();
  }
}

WithoutScriptLock::~WithoutScriptLock() {
  if (released_ != nullptr) {
    script_lock.take(released_);
  }
}

} // namespace accelerate
