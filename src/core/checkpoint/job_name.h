// SPDX-License-Identifier: Apache-2.0
// The identity of a saving job: all its ranks use one name, every other job
// another.
#pragma once

#include <optional>
#include <string>

#include "core/base/internal.h"

namespace accelerate {

/// A new name: HOST-PID-START-N, from this process. Usable in file names;
/// contains no dots.
ACCELERATE_INTERNAL std::string new_job_name();
/// Whether the process that created the name is still running. Empty if it ran
/// on another machine, or the name was not created by `new_job_name`.
std::optional<bool> is_job_alive(const std::string& name);
/// Describes a job for messages: "process 4711 on node1".
std::string describe_job(const std::string& name);

} // namespace accelerate
