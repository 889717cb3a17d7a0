// SPDX-License-Identifier: Apache-2.0
// First contact, for those who make a group of their own afterwards, and the
// connections that a process keeps.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/export.h"
#include "accelerate/process.h"
#include "accelerate/process_group.h"
#include "comm/meeting_point.h"

namespace accelerate {

/// The store where all ranks of the run have signed in. Throws as
/// `ProcessGroup::connect`. What rank 0 listens with stays until the process
/// ends, so that no rank meets a closing store between two groups.
ACCELERATE_API c10::intrusive_ptr<c10d::Store> meet(
    const ProcessEnvironment& environment,
    const Deadline& deadline);

/// From now on a peer that is gone is an exception and no signal, unless the
/// process has a handler of its own.
ACCELERATE_API void ignore_broken_pipes();

/// The connection of this process at that meeting point, by that backend and
/// with that timeout: made at the first call, and again after its `shutdown()`;
/// it ends with the process. `cpu` keeps the run off accelerators. One process
/// is alone, unless an accelerator's backend is asked for by name.
ACCELERATE_API ProcessGroup shared_connection(
    const ProcessEnvironment& environment,
    const ProcessGroupOptions& options,
    bool cpu);

} // namespace accelerate
