// SPDX-License-Identifier: Apache-2.0
// Connects ranks for callers that create their own group, and keeps the
// connections of a process.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/distributed/process_group.h"
#include "accelerate/process.h"
#include "core/base/internal.h"
#include "training/comm/rendezvous.h"

namespace accelerate {

/// The store in which all ranks of the run have signed in. Throws the same
/// errors as `ProcessGroup::connect`. Rank 0 listens until the process ends, so
/// that no rank finds a closed store between two groups.
ACCELERATE_INTERNAL c10::intrusive_ptr<c10d::Store> connect_store(
    const ProcessEnvironment& environment,
    const Deadline& deadline);

/// Makes a lost connection an exception instead of a signal, unless the process
/// has its own handler.
ACCELERATE_INTERNAL void ignore_broken_pipes();

/// The connection of this process at that address, with that backend and
/// timeout. The first call creates it, and a call after its `shutdown()`
/// creates it again. It ends with the process. `cpu` excludes accelerators. A
/// single process is not connected, unless an accelerator's backend is
/// requested by name.
ProcessGroup shared_connection(
    const ProcessEnvironment& environment,
    const ProcessGroupOptions& options,
    bool cpu);

} // namespace accelerate
