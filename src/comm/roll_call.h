// SPDX-License-Identifier: Apache-2.0
// Are all ranks there?
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/export.h"

namespace accelerate {

/// Every rank signs in and waits for the others, so that a missing one is named
/// before any backend blocks. Each rank costs the store the same few
/// operations, however many there are. Throws `TimeoutError` naming the ranks
/// that did not come, `ConfigError` where a rank came twice, `CommError` where
/// the store went away meanwhile.
ACCELERATE_API void roll_call(
    c10d::Store& store,
    int rank,
    int world_size,
    std::chrono::milliseconds timeout);

} // namespace accelerate
