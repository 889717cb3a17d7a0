// SPDX-License-Identifier: Apache-2.0
// `accelerate` alone: shows this machine, and what to try next.
#include <iostream>

#include "accelerate/error.h"
#include "accelerate/process.h"
#include "accelerate/version.h"
#include "core/base/printable.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/config/describe.h"
#include "core/config/resolve.h"
#include "core/hardware/cores.h"
#include "core/hardware/memory.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/python_packages.h"
#include "launcher/launch/plan/plan.h"

namespace accelerate {
namespace {

std::string describe_cpu() {
  const std::string name = processor_name();
  return str_cat(
      name.empty() ? "unknown processor" : name,
      ", ",
      allowed_cores().size(),
      " cores, ",
      read_memory().total_bytes >> 30,
      " GiB of memory");
}

std::string describe_torch(const std::string& python) {
  const std::string path = find_program(python);
  if (path.empty()) {
    return "no python3 on the PATH (not needed for C++ programs)";
  }
  const std::string version = package_versions(path, {"torch"})[0];
  return version.empty()
             ? str_cat("not installed for ", path, " (pip install torch)")
             : str_cat(version, " (", path, ")");
}

/// Describes an invalid file, too: the overview says what is wrong.
std::string describe_configuration(const ResolvedConfig& config, int num_gpus) {
  return str_cat(
      summarize(config.values, num_gpus),
      " (",
      config.file.empty() ? "no file yet: defaults" : config.file.string(),
      ")");
}

} // namespace

void print_overview() {
  ResolvedConfig config;
  std::string problem;
  try {
    config = resolve_launch_config({}, system_env);
    check_launchable(config);
  } catch (const Error& error) {
    problem = printable(error.what());
  }
  // Counts all GPUs, even if the configuration is for the CPU.
  LaunchConfig any_device = config.values;
  any_device.cpu = false;
  const auto facts = read_machine_facts(any_device, system_env);
  const int num_gpus = static_cast<int>(facts.gpus.size());
  std::cout
      << "accelerate " << ACCELERATE_VERSION << "\n\n  CPU     "
      << describe_cpu() << "\n  GPUs    "
      << (facts.gpus.empty() ? "none: " + facts.gpu_problem
                             : describe_gpus(facts.gpus))
      << "\n  torch   " << describe_torch(facts.python) << "\n  config  "
      << (problem.empty() ? describe_configuration(config, num_gpus) : problem)
      << "\n\nTry next:\n"
         "  accelerate new demo          create a small training project\n"
         "  accelerate config            choose processes, GPUs and "
         "precision\n"
         "  accelerate launch train.py   run your own program\n"
         "  accelerate --help            list all commands\n";
}

} // namespace accelerate
