// SPDX-License-Identifier: Apache-2.0
// The table of engines that carry collectives. One file each makes a row.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/c10d.h"
#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

BackendEntry gloo_backend();
/// Whether Gloo threw it; not all of its messages name it.
bool is_gloo_error(const std::exception& error);
/// Takes out of a group's store what this rank told the others there, when all
/// ranks of the group have been through a collective. Stores live as long as
/// the run, groups do not.
void forget_gloo_address(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank);

/// The row of that name; nothing where nobody registered it.
ACCELERATE_API std::optional<BackendEntry> find_backend(
    const std::string& name);

/// The preferred one of the available backends that carry tensors of `device`;
/// empty where there is none.
ACCELERATE_API std::string default_backend_for(c10::DeviceType device);

/// What the row's `make` gives. Throws `ConfigError` where that is null.
c10::intrusive_ptr<c10d::Backend> make_backend(
    const BackendEntry& entry,
    const BackendArguments& arguments);

/// Of a collective; the default if the backend does not say.
std::chrono::milliseconds timeout_of(c10d::Backend& backend);

bool carries(const BackendEntry& entry, c10::DeviceType device);

/// The backend of a run: the one decision for C++ and Python. `wanted` is a
/// name, torch.distributed's list of devices and names for one, or
/// `Backend::kAuto`; `cpu` keeps the run off accelerators. Throws `ConfigError`
/// where such a process cannot use what is wanted.
ACCELERATE_API std::string choose_backend(
    const std::string& wanted,
    const ProcessTopology& topology,
    bool cpu);

/// A backend as torch.distributed's `init_process_group` takes it: "gloo", or
/// "cpu:gloo,cuda:nccl" for one that does not carry CPU tensors.
ACCELERATE_API std::string backends_by_device(const std::string& name);

} // namespace accelerate
