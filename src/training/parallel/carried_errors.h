// SPDX-License-Identifier: Apache-2.0
// Carries this library's exceptions through torch's operators and hooks.
#pragma once

#include "core/base/internal.h"

namespace accelerate {

/// Called in a handler: throws an exception that torch passes on with its
/// class, in place of the current one, an `Error`.
using ErrorCarrier = void (*)();

/// For languages whose torch converts unknown exceptions to a single class;
/// call it once, before the first model is prepared. C++ needs none.
ACCELERATE_INTERNAL void set_error_carrier(ErrorCarrier carrier);

/// Call it in a handler of an `Error`, in code called by torch: rethrows it
/// through the carrier.
[[noreturn]] void throw_carried();

} // namespace accelerate
