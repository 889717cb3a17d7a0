// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/mpirun.h"

#include <set>

#include "accelerate/error.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/network.h"
#include "core/hardware/ports.h"
#include "launcher/launch/plan/hosts.h"

namespace accelerate {
namespace {

int port_for(const LaunchConfig& config, const std::string& first_host) {
  if (config.main_process_port.value_or(0) != 0) {
    return *config.main_process_port;
  }
  return is_this_machine(first_host) ? find_free_port("")
                                     : kDefaultMainProcessPort;
}

} // namespace

std::string mpirun_version() {
  return output_of("mpirun --version 2>/dev/null");
}

ChildCommand under_mpirun(
    const LaunchConfig& config,
    const ChildCommand& command,
    const std::string& version) {
  if (version.empty()) {
    throw ConfigError(
        "[launch] --mpirun_hostfile needs mpirun, which is not on the PATH; "
        "install Open MPI or MPICH");
  }
  if (!config.num_processes) {
    throw ConfigError(
        "[launch] --mpirun_hostfile needs --num_processes, the total number of "
        "processes on all hosts");
  }
  LaunchConfig only_file;
  only_file.hostfile = config.mpirun_hostfile;
  const auto hosts = find_hosts(only_file);
  const std::string first = hosts[0].address();
  ChildCommand result = command;
  result.variables[variables::kMasterAddress] = first;
  result.variables[variables::kMasterPort] =
      std::to_string(port_for(config, first));
  const std::string total = std::to_string(*config.num_processes);
  const std::string file = config.mpirun_hostfile.string();
  if (version.find("Open MPI") != std::string::npos ||
      version.find("OpenRTE") != std::string::npos) {
    result.command = {"mpirun", "--hostfile", file, "-n", total};
    std::set<std::string> names(config.exported.begin(), config.exported.end());
    for (const auto* given : {&result.variables, &result.defaults}) {
      for (const auto& [name, value] : *given) {
        names.insert(name);
      }
    }
    for (const auto& name : names) {
      result.command.insert(result.command.end(), {"-x", name});
    }
  } else {
    // MPICH and Intel MPI pass the environment on by default.
    result.command = {"mpirun", "-f", file, "-n", total};
  }
  result.command.insert(
      result.command.end(), command.command.begin(), command.command.end());
  return result;
}

} // namespace accelerate
