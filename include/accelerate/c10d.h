// SPDX-License-Identifier: Apache-2.0
// The border to c10d, for programs that have a `c10d::ProcessGroup` of their
// own or want to use ours. The only header of ours that includes c10d's.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/export.h"
#include "accelerate/process_group.h"

namespace accelerate {

/// A group on top of an existing one, which stays the caller's to shut down.
/// Collectives use the backend that it has for the tensor's device.
ACCELERATE_API ProcessGroup
from_c10d(c10::intrusive_ptr<c10d::ProcessGroup> group);

/// The group underneath; null for a group of one rank made by us.
ACCELERATE_API c10::intrusive_ptr<c10d::ProcessGroup> to_c10d(
    const ProcessGroup& group);

} // namespace accelerate
