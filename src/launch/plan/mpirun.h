// SPDX-License-Identifier: Apache-2.0
// A run whose processes mpirun starts.
#pragma once

#include <string>

#include "accelerate/export.h"
#include "config/launch_config.h"
#include "launch/supervise/child_process.h"

namespace accelerate {

/// `command` under mpirun on the hosts of `config.mpirun_hostfile`, its
/// variables passed on. `version` is what `mpirun --version` printed: Open MPI
/// and MPICH's family take different flags. Throws `ConfigError` where the
/// host file or the number of processes is missing or `version` is neither's.
ACCELERATE_API ChildCommand under_mpirun(
    const LaunchConfig& config,
    const ChildCommand& command,
    const std::string& version);

/// The output of `mpirun --version`; empty where there is no mpirun.
ACCELERATE_API std::string mpirun_version();

} // namespace accelerate
