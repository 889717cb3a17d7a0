// SPDX-License-Identifier: Apache-2.0
// The border to c10d, for programs that have a `c10d::ProcessGroup` of their
// own or want to use ours. The only header of ours that includes c10d's.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

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

/// What a backend is made from.
struct ACCELERATE_API BackendArguments {
  /// Where its ranks exchange addresses; nobody else writes there.
  c10::intrusive_ptr<c10d::Store> store = {};
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{0};
  /// Where sockets bind: a network interface, or where that is empty an address
  /// of this machine.
  std::string interface = {};
  std::string address = {};
  /// The backend of the group that this one's ranks are some of, which knows
  /// its sockets; null at first contact.
  c10::intrusive_ptr<c10d::Backend> parent = {};
};

/// One row of the table of backends.
struct ACCELERATE_API BackendEntry {
  /// As `c10d::Backend::getBackendName()` gives it.
  std::string name = {};
  /// What it carries, its home first. Where several backends carry tensors of
  /// one device type, the first row that is at home there is preferred. A
  /// backend that does not carry CPU tensors is joined by one that does.
  std::vector<c10::DeviceType> devices = {};
  /// Whether this build and this machine can make it.
  std::function<bool()> available = {};
  /// Never null; what cannot be made is an exception.
  std::function<c10::intrusive_ptr<c10d::Backend>(const BackendArguments&)>
      make = {};
  /// Its `_reduce_scatter_base` costs as much as an all-reduce: an exchange and
  /// a sum on each rank are cheaper.
  bool sums_after_exchange = false;
};

/// Adds a backend, under whose name `ProcessGroupOptions::backend` finds it and
/// which `Backend::kAuto` takes where the row of the accelerator in use
/// (`accelerator_kind.h`) names it. Call it before the first group is made.
/// Throws `UsageError` where a part is missing or the name is taken.
///
///     accelerate::register_backend({
///         .name = "fast",
///         .devices = {c10::kPrivateUse1},
///         .available = [] { return true; },
///         .make = make_fast_backend,
///     });
ACCELERATE_API void register_backend(BackendEntry entry);

} // namespace accelerate
