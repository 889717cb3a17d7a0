// SPDX-License-Identifier: Apache-2.0
// The job that saves: all ranks of it use one name, every other job another.
#pragma once

#include <optional>
#include <string>

#include "accelerate/export.h"

namespace accelerate {

/// A new name: HOST-PID-START-N, of this process. May be part of a file's name
/// and has no dots.
ACCELERATE_API std::string new_job_name();
/// Whether the process that made the name still runs. Nothing if it ran on
/// another machine, or if the name was not made by `new_job_name`.
ACCELERATE_API std::optional<bool> is_job_alive(const std::string& name);
/// For messages: "process 4711 on node1".
ACCELERATE_API std::string describe_job(const std::string& name);

} // namespace accelerate
