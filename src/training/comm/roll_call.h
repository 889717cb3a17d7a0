// SPDX-License-Identifier: Apache-2.0
// Waits until all ranks have signed in.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/base/internal.h"

namespace accelerate {

/// Every rank signs in and waits for the others, so that missing ranks are
/// named before a backend blocks. The number of store operations per rank does
/// not depend on the number of ranks. Throws a `TimeoutError` that names the
/// missing ranks, `ConfigError` if a rank signed in twice, and `CommError` if
/// the store is gone.
ACCELERATE_INTERNAL void roll_call(
    c10d::Store& store,
    int rank,
    int world_size,
    std::chrono::milliseconds timeout);

} // namespace accelerate
