// SPDX-License-Identifier: Apache-2.0
// Exceptions of this library on their way through torch's operators and hooks.
#pragma once

#include "accelerate/export.h"

namespace accelerate {

/// Called in a handler: throws an exception that torch hands on with its class
/// in the place of the one that is handled, an `Error`.
using ErrorCarrier = void (*)();

/// For a language whose torch turns exceptions that it does not know into one
/// class; once, before the first model is prepared. C++ needs none.
ACCELERATE_API void set_error_carrier(ErrorCarrier carrier);

/// In a handler of an `Error`, where torch called: throws it again, by way of
/// the carrier.
[[noreturn]] void throw_carried();

} // namespace accelerate
