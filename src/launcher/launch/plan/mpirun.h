// SPDX-License-Identifier: Apache-2.0
// Runs whose processes mpirun starts.
#pragma once

#include <string>

#include "core/base/internal.h"
#include "core/config/launch_config.h"
#include "launcher/launch/supervise/child_process.h"

namespace accelerate {

/// Wraps `command` in an mpirun command for the hosts of
/// `config.mpirun_hostfile`. `version` is the output of `mpirun --version`,
/// because Open MPI and MPICH's family have different flags. Throws
/// `ConfigError` if the host file or the number of processes is missing or
/// `version` is unknown.
ChildCommand under_mpirun(
    const LaunchConfig& config,
    const ChildCommand& command,
    const std::string& version);

/// The output of `mpirun --version`. Empty if there is no mpirun.
ACCELERATE_INTERNAL std::string mpirun_version();

} // namespace accelerate
