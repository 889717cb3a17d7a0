// SPDX-License-Identifier: Apache-2.0
// `accelerate env`: what a bug report needs.
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>

#include "accelerate/process.h"
#include "accelerate/version.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/config/flags.h"
#include "core/config/resolve.h"
#include "core/hardware/cores.h"
#include "core/hardware/gpu_kinds.h"
#include "core/hardware/memory.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/cli/python_packages.h"
#include "launcher/launch/plan/plan.h"
#include "launcher/launch/plan/shell_quote.h"

namespace accelerate {
namespace {

std::string or_none(const std::string& text) {
  return text.empty() ? "not found" : text;
}

std::string gibibytes(int64_t bytes) {
  return str_cat(bytes / (int64_t{1} << 20) * 10 / 1024 / 10, " GiB");
}

void print_system() {
  utsname system{};
  uname(&system);
  const auto memory = read_memory();
  std::cout << "- accelerate: " << ACCELERATE_VERSION
            << "\n- platform: " << system.sysname << ' ' << system.release
            << ' ' << system.machine
            << "\n- processor: " << or_none(processor_name()) << ", "
            << allowed_cores().size() << " cores, " << numa_nodes().size()
            << " NUMA node(s)\n- memory: " << gibibytes(memory.total_bytes)
            << ", " << gibibytes(memory.available_bytes) << " available";
  if (memory.shared_total_bytes) {
    std::cout << "; /dev/shm " << gibibytes(*memory.shared_total_bytes);
  }
  std::cout << '\n';
}

void print_gpus() {
  const auto inventory = list_gpus(gpu_kinds());
  if (inventory.gpus.empty()) {
    std::cout << "- GPUs: none: " << inventory.problem << '\n';
    return;
  }
  std::cout << "- " << inventory.kind->driver_name << ": " << inventory.driver
            << '\n';
  for (const auto& gpu : inventory.gpus) {
    std::cout << "- GPU " << gpu.index << ": " << gpu.name << ", "
              << gibibytes(gpu.memory_bytes) << ", "
              << gibibytes(gpu.free_bytes) << " free, PCI " << gpu.pci_address
              << '\n';
  }
}

void print_software() {
  const std::string python =
      read_machine_facts(LaunchConfig{.cpu = true}, system_env).python;
  const std::vector<std::string> names = {
      "torch", "numpy", "transformers", "safetensors"};
  const auto versions = package_versions(python, names);
  std::cout << "- Python: "
            << or_none(first_line_of(shell_quoted(python) + " --version 2>&1"))
            << " (" << or_none(find_program(python)) << ")\n- packages: ";
  for (size_t i = 0; i < names.size(); ++i) {
    std::cout << (i == 0 ? "" : ", ") << names[i] << ' '
              << (versions[i].empty() ? "not installed" : versions[i]);
  }
  std::cout << "\n- mpirun: "
            << or_none(first_line_of("mpirun --version 2>/dev/null"))
            << "\n- Slurm: "
            << or_none(first_line_of("srun --version 2>/dev/null")) << '\n';
}

void print_variables() {
  constexpr const char* kPrefixes[] = {
      "ACCELERATE_",
      "NCCL_",
      "GLOO_",
      "CUDA_",
      "OMP_",
      "MASTER_",
      "SLURM_JOB",
      "OMPI_COMM",
      "RANK=",
      "WORLD",
      "LOCAL_",
      variables::kHuggingFaceHome};
  std::cout << "- variables:\n";
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    for (const char* prefix : kPrefixes) {
      if (text.starts_with(prefix)) {
        const std::string secret = str_cat(variables::kJobToken, "=");
        std::cout << "    "
                  << (text.starts_with(secret) ? secret + "(hidden)" : text)
                  << '\n';
        break;
      }
    }
  }
}

void print_config(const ConfigLayer& flags) {
  const auto config = resolve_launch_config(flags, system_env);
  if (config.file.empty()) {
    std::cout << "- configuration: none (defaults)\n";
    return;
  }
  std::cout << "- configuration: " << config.file.string() << '\n';
  std::ifstream file(config.file);
  for (std::string line; std::getline(file, line);) {
    std::cout << "    " << line << '\n';
  }
}

} // namespace

void add_env_command(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command = app.add_subcommand(
      "env", "Print version and hardware information for bug reports");
  command->group(kInspectCommands);
  const auto flags = std::make_shared<ConfigLayer>();
  command
      ->add_option_function<std::string>(
          flag_spellings("config_file", 0),
          [flags](const std::string& text) {
            (*flags)["config_file"] = {text, "--config_file"};
          },
          "Configuration file to use instead of the default one")
      ->type_name("FILE");
  command->callback([flags] {
    print_system();
    print_gpus();
    print_software();
    print_variables();
    print_config(*flags);
  });
}

} // namespace accelerate
