// SPDX-License-Identifier: Apache-2.0
// `accelerate launch`: starts the processes of a run.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <iostream>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/config/fields.h"
#include "core/config/flags.h"
#include "core/config/foreign.h"
#include "core/config/resolve.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/cli/program_mark.h"
#include "launcher/launch/machines/diagnosis.h"
#include "launcher/launch/machines/job_token.h"
#include "launcher/launch/parent_folder.h"
#include "launcher/launch/plan/hosts.h"
#include "launcher/launch/plan/mpirun.h"
#include "launcher/launch/plan/nearest_file.h"
#include "launcher/launch/plan/plan.h"
#include "launcher/launch/plan/shell_quote.h"
#include "launcher/launch/session.h"
#include "launcher/launch/supervise/guardian.h"

namespace accelerate {
namespace {

void check_program(const std::vector<std::string>& program) {
  if (program.empty() || program[0].empty()) {
    throw ConfigError(
        "[launch] no program was given; use `accelerate launch [OPTIONS] "
        "train.py`, or see `accelerate launch --help`");
  }
}

/// Rejects files whose extension shows that they are not programs.
void check_kind(
    const LaunchConfig& config,
    const std::vector<std::string>& program) {
  const std::filesystem::path file = program[0];
  const std::string ending = file.extension();
  const auto is_one_of = [&](std::initializer_list<const char*> endings) {
    return std::find(endings.begin(), endings.end(), ending) != endings.end();
  };
  if (config.module || access(file.c_str(), X_OK) == 0) {
    return;
  }
  std::string problem;
  if (is_one_of({".yaml", ".yml", ".json"})) {
    std::string rest;
    for (size_t i = 1; i < program.size(); ++i) {
      rest += ' ' + shell_quoted(program[i]);
    }
    problem = str_cat(
        "looks like a configuration file, not a program. Use `accelerate "
        "launch --config_file ",
        shell_quoted(file),
        rest.empty() ? " train.py" : rest,
        "`");
  } else if (ending == ".ipynb") {
    problem =
        "is a notebook, not a program. Call notebook_launcher in a cell of the "
        "notebook, or convert the notebook with `jupyter nbconvert --to "
        "script`";
  } else if (is_one_of({".cpp", ".cc", ".cxx"})) {
    problem = "is source code, not a program. Build it, and pass the program";
  } else {
    return;
  }
  throw ConfigError(str_cat(
      "[launch] '", printable(file.string()), "' ", printable(problem)));
}

Patience patience_of(const LaunchConfig& config) {
  Patience patience;
  patience.limit = std::chrono::seconds(config.heartbeat_seconds);
  patience.notice = std::min(patience.notice, patience.limit);
  return patience;
}

std::vector<std::string> find_problems(
    const LaunchConfig& config,
    const LaunchPlan& plan,
    const MachineFacts& facts) {
  return config.check ? problems_of(diagnose_machine(
                            config, facts, plan.command.command.at(0)))
                      : std::vector<std::string>();
}

/// Rejects a missing script here, because Python would report it once per
/// worker.
void check_script(
    const LaunchConfig& config,
    const std::vector<std::string>& program) {
  std::error_code error;
  if (!config.module && !config.no_python && program[0].ends_with(".py") &&
      !std::filesystem::exists(program[0], error)) {
    const std::string meant = nearest_file(program[0], {".py"});
    throw ConfigError(str_cat(
        "[launch] no file '",
        printable(program[0]),
        "' in ",
        working_folder().string(),
        meant.empty() ? std::string(". Check the path of the script")
                      : str_cat("; did you mean '", printable(meant), "'?")));
  }
}

/// A hint about an option of `launch` that follows the script and therefore
/// belongs to it.
std::string hint_on_order(const std::vector<std::string>& program) {
  for (size_t i = 1; i < program.size(); ++i) {
    if (!program[i].starts_with("--")) {
      continue;
    }
    std::string name = program[i].substr(2, program[i].find('=') - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    if (find_field(name) != nullptr) {
      return str_cat(
          "[launch] The script was given ",
          program[i].substr(0, program[i].find('=')),
          ", which is an option of `accelerate launch`. Launch options go "
          "before the script: accelerate launch --",
          name,
          " ... ",
          printable(program[0]));
    }
  }
  return {};
}

/// A note on options that only Python programs read. A C++ program requests
/// these features in its code.
std::string note_on_python(
    const LaunchConfig& config,
    const std::vector<std::string>& program) {
  const bool is_python = config.module || program[0].ends_with(".py") ||
                         std::filesystem::path(program[0])
                             .filename()
                             .string()
                             .starts_with("python");
  if (is_python) {
    return {};
  }
  if (config.use_fsdp || config.use_deepspeed) {
    return str_cat(
        config.use_fsdp ? "use_fsdp" : "use_deepspeed",
        " has no effect on C++ programs. Set .shard in the "
        "AcceleratorOptions of ",
        program[0]);
  }
  return is_off(config.dynamo_backend)
             ? std::string()
             : str_cat(
                   "dynamo_backend has no effect on C++ programs: the models "
                   "of ",
                   program[0],
                   " are not compiled");
}

/// A note on GPUs that do not exist. This is not an error, because
/// configurations are shared between machines.
std::string note_on_gpus(
    const LaunchConfig& config,
    const MachineFacts& facts) {
  if (config.gpu_ids.empty() || config.cpu || !facts.gpus.empty()) {
    return {};
  }
  return str_cat(
      "gpu_ids is ",
      format_field(config, *find_field("gpu_ids")),
      ", but this machine has no usable GPU (",
      facts.gpu_problem,
      "), so training runs on the CPU. Pass --cpu to train on the CPU without "
      "this warning");
}

int run_plan(const LaunchPlan& plan, SessionOptions options) {
  return run_guarded(
      [&](int lifeline) {
        options.lifeline = lifeline;
        try {
          return run_session(plan, options);
        } catch (const Error& error) {
          std::cerr << "accelerate: " << printable(error.what()) << '\n';
          return kExitUsage;
        }
      },
      plan.is_contained);
}

void print_dry_run(const LaunchPlan& plan) {
  const Placement& placement = plan.placement;
  if (placement.is_in_place) {
    std::cout << describe_workers(
        {{placement.environment.topology.rank, command_in_place(plan)}});
    return;
  }
  StartOrder order;
  order.group_world_size = placement.num_machines;
  // If machine 0 will assign a rank, show the commands of the second machine.
  order.group_rank = std::abs(placement.machine_rank);
  order.world_size = plan.num_local * order.group_world_size;
  order.first_rank = plan.num_local * order.group_rank;
  order.max_restarts = plan.max_restarts;
  order.master_port = plan.main_process_port.value_or(0);
  if (placement.num_machines > 1) {
    order.master_address = placement.rendezvous.address;
  }
  std::cout << describe_workers(workers_of(plan, order));
}

Placement place_hosts(
    const std::vector<HostEntry>& hosts,
    const LaunchConfig& config) {
  Placement placement;
  placement.num_machines = static_cast<int>(hosts.size());
  if (hosts.size() > 1) {
    placement.rendezvous = {
        rendezvous_address(hosts, config.main_process_ip),
        config.main_process_port.value_or(kDefaultMainProcessPort)};
  }
  return placement;
}

std::vector<RemoteLauncher> remote_launchers(
    const std::vector<HostEntry>& hosts,
    const ResolvedConfig& config,
    const LaunchPlan& plan,
    const std::vector<std::string>& program,
    const std::string& token) {
  if (hosts.size() < 2) {
    return {};
  }
  JoinOrder order;
  order.token = token;
  order.num_machines = static_cast<int>(hosts.size());
  order.rendezvous = plan.placement.rendezvous;
  order.join_limit = std::chrono::seconds(config.values.join_timeout);
  order.is_coloured = plan.output.is_coloured;
  order.folder = working_folder();
  order.program = program;
  order.variables = variables_to_pass_on(environ, config.values.exported);
  for (const Field& field : launch_fields()) {
    const std::string name(field.name);
    if (config.kind_of(name) != SourceKind::kDefault) {
      order.options[name] = format_field(config.values, field);
    }
  }
  const std::string self = own_program();
  const std::string ssh = system_env(variables::kSshCommand).value_or("");
  std::vector<RemoteLauncher> launchers;
  for (size_t i = 1; i < hosts.size(); ++i) {
    order.machine_rank = static_cast<int>(i);
    order.num_local = hosts[i].slots;
    launchers.push_back(
        {hosts[i].name,
         ssh_command(hosts[i], ssh, self),
         encode_join_order(order)});
  }
  return launchers;
}

/// Runs the launcher of another machine, which reads its order from stdin.
int join_from_stdin() {
  std::string line;
  std::getline(std::cin, line);
  const JoinOrder order = decode_join_order(line);
  ResolvedConfig config;
  for (const auto& [name, text] : order.options) {
    if (const Field* field = find_field(name)) {
      assign_field(config.values, *field, {text, "--" + name});
      config.sources[name] = {SourceKind::kFlag, "--" + name};
    }
  }
  std::error_code error;
  std::filesystem::current_path(order.folder, error);
  if (error) {
    throw ConfigError(str_cat(
        "[launch] cannot change to the folder ",
        order.folder,
        " on this host (",
        error.message(),
        "). Launch from a folder that all hosts share"));
  }
  Placement placement;
  placement.num_machines = order.num_machines;
  placement.machine_rank = order.machine_rank;
  placement.rendezvous = order.rendezvous;
  const auto facts = read_machine_facts(config.values, system_env);
  LaunchStarter starter;
  starter.num_local = order.num_local;
  starter.variables = order.variables;
  starter.is_coloured = order.is_coloured;
  starter.is_input_shared = false;
  const LaunchPlan plan =
      make_plan(config, order.program, placement, facts, starter);
  SessionOptions options;
  options.token = order.token;
  options.join_limit = order.join_limit;
  options.patience = patience_of(config.values);
  options.problems = find_problems(config.values, plan, facts);
  options.is_remote_controlled = true;
  return run_plan(plan, options);
}

} // namespace

int launch(
    const ConfigLayer& flags,
    const std::vector<std::string>& program,
    const std::string& parent_folder) {
  check_program(program);
  if (!parent_folder.empty()) {
    check_parent_folder(parent_folder);
  }
  const ResolvedConfig config =
      resolve_launch_config(flags, variables_of_new_job(system_env));
  check_launchable(config);
  const LaunchConfig& values = config.values;
  check_kind(values, program);
  const auto hosts = find_hosts(values);
  const bool is_mpirun = !values.mpirun_hostfile.empty();
  Placement placement;
  if (!hosts.empty()) {
    placement = place_hosts(hosts, values);
  } else if (!is_mpirun) {
    placement = find_placement(config, system_env);
  }
  LaunchStarter starter;
  starter.is_coloured = isatty(STDOUT_FILENO) == 1 &&
                        isatty(STDERR_FILENO) == 1 &&
                        !system_env(variables::kNoColor);
  starter.is_prompt = !parent_folder.empty();
  starter.is_input_shared = parent_folder.empty();
  if (!hosts.empty()) {
    starter.num_local = hosts[0].slots;
  } else if (is_mpirun) {
    starter.mpirun_version = mpirun_version();
  }
  const auto facts = read_machine_facts(values, system_env);
  const LaunchPlan plan = make_plan(config, program, placement, facts, starter);
  if (values.dry_run) {
    print_dry_run(plan);
    return 0;
  }
  check_script(values, program);
  auto notes = config.notes;
  notes.push_back(note_on_hidden_output(plan));
  notes.push_back(note_on_python(values, program));
  notes.push_back(note_on_gpus(values, facts));
  for (const auto& note : notes) {
    if (!note.empty()) {
      std::cerr << "[launch] " << printable(note) << '\n';
    }
  }
  if (placement.is_in_place) {
    become(command_in_place(plan));
  }
  SessionOptions options;
  options.join_limit = std::chrono::seconds(values.join_timeout);
  options.parent_folder = parent_folder;
  options.usage_hint = hint_on_order(program);
  options.is_watched = values.watch;
  options.opens_browser =
      isatty(STDERR_FILENO) == 1 && (system_env(variables::kDisplay) ||
                                     system_env(variables::kWaylandDisplay));
  options.patience = patience_of(values);
  options.problems = find_problems(values, plan, facts);
  std::optional<JobToken> token;
  if (hosts.size() > 1) {
    options.token = random_token();
  } else {
    token.emplace(placement, system_env, options.join_limit);
    options.token = token->text();
  }
  options.remote_launchers =
      remote_launchers(hosts, config, plan, program, options.token);
  return run_plan(plan, options);
}

void add_launch_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "launch", "Run a training program on one or more processes");
  command->group(kTrainCommands);
  const auto flags = add_launch_flags(*command);
  const auto is_joining = std::make_shared<bool>(false);
  constexpr const char* kHidden = "";
  command->add_flag("--join_from_stdin", *is_joining)->group(kHidden);
  const auto parent_folder = std::make_shared<std::string>();
  command->add_option("--parent_folder", *parent_folder)->group(kHidden);
  command->footer(
      "Put options before the program, and the program's arguments after it:\n"
      "  accelerate launch --num_processes 2 train.py --epochs 3");
  // All arguments from the program on belong to the program.
  command->prefix_command();
  command->callback([=, &exit_code] {
    auto program = command->remaining();
    const bool is_marked = unmark_program(program);
    if (!is_marked && !program.empty() && program[0].starts_with('-')) {
      throw ConfigError(explain_unknown_flag(program[0]));
    }
    exit_code = *is_joining ? join_from_stdin()
                            : launch(*flags, program, *parent_folder);
  });
}

} // namespace accelerate
