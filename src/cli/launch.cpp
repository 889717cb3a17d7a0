// SPDX-License-Identifier: Apache-2.0
// `accelerate launch`: starts the processes of a run on this machine.
#include <CLI/CLI.hpp>
#include <iostream>

#include "accelerate/error.h"
#include "base/str.h"
#include "cli/commands.h"
#include "config/flags.h"
#include "config/resolve.h"
#include "launch/guardian.h"
#include "launch/job_token.h"
#include "launch/plan.h"
#include "launch/session.h"

namespace accelerate {
namespace {

void check_program(const std::vector<std::string>& program) {
  if (program.empty()) {
    throw ConfigError(
        "[launch] got no program where a program or a .py script was "
        "expected; see `accelerate launch --help`");
  }
  if (program[0].starts_with('-')) {
    throw ConfigError(explain_unknown_flag(program[0]));
  }
}

int run_plan(const LaunchPlan& plan, SessionOptions options) {
  return run_guarded([&](int lifeline) {
    options.lifeline = lifeline;
    try {
      return run_session(plan, options);
    } catch (const Error& error) {
      std::cerr << "accelerate: " << error.what() << '\n';
      return kExitUsage;
    }
  });
}

} // namespace

int launch(const ConfigLayer& flags, const std::vector<std::string>& program) {
  check_program(program);
  const ResolvedConfig config = resolve_launch_config(flags, system_env);
  check_launchable(config);
  const Placement placement = find_placement(config, system_env);
  const LaunchPlan plan = make_plan(
      config,
      program,
      placement,
      read_machine_facts(config.values, system_env));
  if (config.values.dry_run) {
    StartOrder order;
    order.world_size = plan.num_local * placement.num_machines;
    order.first_rank = plan.num_local * placement.machine_rank;
    order.master_address = placement.meeting_point.address.empty()
                               ? order.master_address
                               : placement.meeting_point.address;
    std::cout << describe_workers(workers_of(plan, order));
    return 0;
  }
  for (const auto& note : config.notes) {
    std::cerr << "[launch] " << note << '\n';
  }
  if (placement.is_in_place) {
    become(command_in_place(plan));
  }
  SessionOptions options;
  options.token = find_token(system_env);
  return run_plan(plan, options);
}

void add_launch_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("launch", "Starts a program on several processes");
  const auto flags = add_launch_flags(*command);
  command->footer(
      "The program (or .py script) and its arguments follow the options:\n"
      "  accelerate launch --num_processes 2 ./train --epochs 3");
  // Everything from the program on belongs to the program.
  command->prefix_command();
  command->callback([command, flags, &exit_code] {
    exit_code = launch(*flags, command->remaining());
  });
}

} // namespace accelerate
