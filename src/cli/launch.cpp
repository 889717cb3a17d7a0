// SPDX-License-Identifier: Apache-2.0
// `accelerate launch`: starts the processes of a run on this machine.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "accelerate/error.h"
#include "base/str.h"
#include "cli/commands.h"
#include "launch/plan.h"
#include "launch/supervisor.h"

namespace accelerate {

void add_launch_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("launch", "Starts a program on several processes");
  auto options = std::make_shared<LaunchOptions>();
  command
      ->add_option(
          "--num_processes,--num-processes",
          options->num_processes,
          "How many processes to start")
      ->capture_default_str()
      ->check(CLI::Range(1, kMaxProcesses));
  command->footer(
      "The program (or .py script) and its arguments follow the options:\n"
      "  accelerate launch --num_processes 2 ./train --epochs 3");
  // Everything from the program on belongs to the program.
  command->prefix_command();
  command->callback([command, options, &exit_code] {
    options->command = command->remaining();
    if (options->command.empty() || options->command[0].starts_with('-')) {
      throw ConfigError(str_cat(
          "[launch] got ",
          options->command.empty() ? "no program"
                                   : "'" + options->command[0] + "'",
          " where a program or a .py script was expected; see `accelerate "
          "launch --help`"));
    }
    Supervisor supervisor(std::cerr);
    exit_code = supervisor.run(plan_workers(*options, system_env));
  });
}

} // namespace accelerate
