// SPDX-License-Identifier: Apache-2.0
// `accelerate test`: runs the self-check like a user's program.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "accelerate/error.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/config/flags.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/launch/plan/plan.h"

namespace accelerate {
namespace {

std::vector<std::string> selftest_command() {
  const auto program = selftest_program();
  if (!std::filesystem::exists(program)) {
    throw ConfigError(str_cat(
        "[test] the self-check ",
        program.string(),
        " is missing. Install a build with the training library "
        "(ACCELERATE_WITH_TORCH=ON)"));
  }
  // Scripts run with the Python that `launch` uses.
  return is_script(program)
             ? std::vector<std::string>{find_python(), "-u", program}
             : std::vector<std::string>{program};
}

} // namespace

void add_test_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "test", "Check that training works with your configuration");
  command->group(kTrainCommands);
  const auto flags = add_launch_flags(*command);
  command->callback([flags, &exit_code] {
    exit_code = launch(*flags, selftest_command());
    std::cout
        << (exit_code == 0 ? "Everything works: you are ready to train.\n"
                           : "The self-check failed. Run `accelerate doctor` "
                             "to find out why.\n");
  });
}

} // namespace accelerate
