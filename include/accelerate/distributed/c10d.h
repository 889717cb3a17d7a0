// SPDX-License-Identifier: Apache-2.0
// The interface to c10d, for programs that have their own `c10d::ProcessGroup`
// or want to use ours. This is the only public header that includes headers of
// c10d.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "accelerate/distributed/process_group.h"
#include "accelerate/export.h"

namespace accelerate {

/// Wraps an existing group, which the caller must still shut down. Collectives
/// use the group's backend for the tensor's device.
ACCELERATE_API ProcessGroup
from_c10d(c10::intrusive_ptr<c10d::ProcessGroup> group);

/// Returns the underlying group, or null for a group of one rank that this
/// library created.
ACCELERATE_API c10::intrusive_ptr<c10d::ProcessGroup> to_c10d(
    const ProcessGroup& group);

/// The arguments for creating a backend.
struct ACCELERATE_API BackendArguments {
  /// The store that the ranks of this backend use to exchange addresses.
  /// Nothing else uses it.
  c10::intrusive_ptr<c10d::Store> store = {};
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{0};
  /// The network interface that sockets bind to. If it is empty, they bind to
  /// `address`, an address of this machine.
  std::string interface = {};
  std::string address = {};
  /// The backend of the parent group, whose sockets the new one reuses. Null
  /// for the first group.
  c10::intrusive_ptr<c10d::Backend> parent = {};
};

/// One row of the table of backends.
struct ACCELERATE_API BackendEntry {
  /// As returned by `c10d::Backend::getBackendName()`.
  std::string name = {};
  /// The supported device types, starting with the native one. If several
  /// backends support a device type, the first row with that native type is
  /// used. A backend that does not support CPU tensors is combined with one
  /// that does.
  std::vector<c10::DeviceType> devices = {};
  /// Whether this build and this machine can create the backend.
  std::function<bool()> available = {};
  /// Creates the backend. Must not return null, and must throw if it fails.
  std::function<c10::intrusive_ptr<c10d::Backend>(const BackendArguments&)>
      make = {};
  /// Whether `_reduce_scatter_base` of this backend is as expensive as an
  /// all-reduce. In this case, it is cheaper to exchange the parts and sum them
  /// on each rank.
  bool sums_after_exchange = false;
};

/// Adds a backend. `ProcessGroupOptions::backend` finds it by its name, and
/// `Backend::kAuto` uses it if the row of the current accelerator
/// (`accelerator_kind.h`) names it. Call it before the first group is created.
/// Throws `UsageError` if a field is missing or the name is taken.
///
///     accelerate::register_backend({
///         .name = "fast",
///         .devices = {c10::kPrivateUse1},
///         .available = [] { return true; },
///         .make = make_fast_backend,
///     });
ACCELERATE_API void register_backend(BackendEntry entry);

} // namespace accelerate
