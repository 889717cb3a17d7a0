// SPDX-License-Identifier: Apache-2.0
// The identity of a job that saves checkpoints. All ranks of a job use the same
// name, and every job has its own.
#pragma once

#include <optional>
#include <string>

#include "core/base/internal.h"

namespace accelerate {

/// Returns a new name for this process, HOST-PID-START-N. It can be used in
/// file names and contains no dots.
ACCELERATE_INTERNAL std::string new_job_name();
/// Whether the process that created the name is still running. Empty if it ran
/// on another machine, or the name was not created by `new_job_name`.
std::optional<bool> is_job_alive(const std::string& name);
/// Describes a job for messages: "process 4711 on node1".
std::string describe_job(const std::string& name);

} // namespace accelerate
