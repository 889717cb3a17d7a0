// SPDX-License-Identifier: Apache-2.0
// The table of backends, with one file and one row each.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/distributed/c10d.h"
#include "accelerate/process.h"
#include "core/base/internal.h"

namespace accelerate {

BackendEntry gloo_backend();
/// Whether Gloo threw `error`. Not all of Gloo's messages contain its name.
bool is_gloo_error(const std::exception& error);
/// Removes this rank's entries from a group's store after all ranks have
/// completed a collective. The store lives as long as the run, but groups do
/// not.
void forget_gloo_address(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank);

/// The row with this name. Empty if it is not registered.
ACCELERATE_INTERNAL std::optional<BackendEntry> find_backend(
    const std::string& name);

/// The preferred available backend for tensors of `device`. Empty if there is
/// none.
ACCELERATE_INTERNAL std::string default_backend_for(c10::DeviceType device);

/// The result of the row's `make`. Throws `ConfigError` if it is null.
c10::intrusive_ptr<c10d::Backend> make_backend(
    const BackendEntry& entry,
    const BackendArguments& arguments);

/// The timeout of a collective, or the default if the backend does not specify
/// one.
std::chrono::milliseconds timeout_of(c10d::Backend& backend);

bool carries(const BackendEntry& entry, c10::DeviceType device);

/// Chooses the backend of a run, for C++ and Python. `wanted` is a name,
/// torch.distributed's list of devices and names for one, or `Backend::kAuto`.
/// `cpu` excludes accelerators. Throws `ConfigError` if this process cannot use
/// the backend.
ACCELERATE_INTERNAL std::string choose_backend(
    const std::string& wanted,
    const ProcessTopology& topology,
    bool cpu);

/// A backend in the notation of torch.distributed's `init_process_group`:
/// "gloo", or "cpu:gloo,cuda:nccl" for one without CPU tensors.
ACCELERATE_INTERNAL std::string backends_by_device(const std::string& name);

} // namespace accelerate
