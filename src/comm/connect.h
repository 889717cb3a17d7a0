// SPDX-License-Identifier: Apache-2.0
// First contact, for those who make a group of their own afterwards.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

/// The store where all ranks of the run have signed in. Throws as
/// `ProcessGroup::connect`.
ACCELERATE_API c10::intrusive_ptr<c10d::Store> meet(
    const ProcessEnvironment& environment,
    std::chrono::milliseconds timeout);

/// From now on a peer that is gone is an exception and no signal, unless the
/// process has a handler of its own.
ACCELERATE_API void ignore_broken_pipes();

/// Whether ranks like this one can each have a GPU for NCCL.
ACCELERATE_API bool has_gpu_for_each_rank(const ProcessTopology& topology);

} // namespace accelerate
