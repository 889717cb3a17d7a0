// SPDX-License-Identifier: Apache-2.0
// Carries this library's exceptions through torch's operators and hooks.
#pragma once

#include "core/base/internal.h"

namespace accelerate {

/// Called in a handler of an `Error`: throws another exception in its place,
/// whose class torch preserves.
using ErrorCarrier = void (*)();

/// For languages in which torch converts unknown exceptions to a single class.
/// Call it once, before the first model is prepared. C++ needs no carrier.
ACCELERATE_INTERNAL void set_error_carrier(ErrorCarrier carrier);

/// Call this in a handler of an `Error`, in code called by torch: rethrows the
/// error through the carrier.
[[noreturn]] void throw_carried();

} // namespace accelerate
