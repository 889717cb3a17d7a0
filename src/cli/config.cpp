// SPDX-License-Identifier: Apache-2.0
// `accelerate config`: asks, writes, updates and shows configuration files.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "accelerate/process.h"
#include "base/str.h"
#include "cli/commands.h"
#include "config/config_file.h"
#include "config/describe.h"
#include "config/fields.h"
#include "config/flags.h"
#include "config/questionnaire.h"
#include "config/resolve.h"
#include "hardware/gpu_kinds.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

int count_gpus() {
  return static_cast<int>(usable_gpus(gpu_kinds(), system_env).gpus.size());
}

std::shared_ptr<std::string> add_file_option(
    CLI::App& command,
    const std::string& help) {
  auto file = std::make_shared<std::string>();
  command.add_option(flag_spellings("config_file", 0), *file, help)
      ->type_name("FILE");
  return file;
}

fs::path path_or_default(const std::string& path) {
  return path.empty() ? default_config_path(system_env) : fs::path(path);
}

void announce(const fs::path& path) {
  std::cout << "accelerate configuration saved at " << path.string() << '\n';
}

int ask_and_write(const std::string& file) {
  const fs::path path = path_or_default(file);
  config_target(path); // Nobody answers questions for nothing.
  const bool is_terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
  const auto prompter =
      is_terminal ? make_terminal_prompter(STDIN_FILENO, STDERR_FILENO)
                  : make_plain_prompter(std::cin, std::cerr);
  try {
    const LaunchConfig config = ask_for_config(
        *prompter, {.num_gpus = count_gpus(), .home = home_folder(system_env)});
    write_config_file(path, to_document(config));
    announce(path);
    return 0;
  } catch (const Interrupted& interrupted) {
    std::cerr << "\naccelerate: " << interrupted.what() << '\n';
    return kExitInterrupted;
  }
}

void add_default(CLI::App& config) {
  CLI::App* command = config.add_subcommand(
      "default", "Writes a configuration for this machine without asking");
  auto file = add_file_option(*command, "Write here, not to the default place");
  auto precision = std::make_shared<std::string>("no");
  command
      ->add_option(
          flag_spellings("mixed_precision", 0),
          *precision,
          std::string(find_field("mixed_precision")->help))
      ->type_name(value_placeholder(*find_field("mixed_precision")));
  command->callback([file, precision] {
    const fs::path path = path_or_default(*file);
    const LaunchConfig config = default_config(count_gpus(), *precision);
    if (fs::exists(path)) {
      throw ConfigError(str_cat(
          "[config default] '",
          path.string(),
          "' is there already and is not overwritten; remove it, or run "
          "`accelerate config` or `accelerate config update`"));
    }
    write_config_file(path, to_document(config));
    announce(path);
  });
}

void add_update(CLI::App& config) {
  CLI::App* command = config.add_subcommand(
      "update", "Rewrites a file of an older version in today's form");
  auto file =
      add_file_option(*command, "Update this file, not the default one");
  command->callback([file] {
    const fs::path path = path_or_default(*file);
    write_config_file(
        path, complete_document(read_config_file(path), count_gpus()));
    std::cout << "accelerate configuration updated at " << path.string()
              << '\n';
  });
}

void add_show(CLI::App& config) {
  CLI::App* command = config.add_subcommand(
      "show", "Prints what a launch would use, and where each value is from");
  auto flags = add_launch_flags(*command);
  command->callback([flags] {
    const ResolvedConfig config = resolve_launch_config(*flags, system_env);
    std::cout << "file: "
              << (config.file.empty()
                      ? str_cat(
                            "none (",
                            default_config_path(system_env).string(),
                            " does not exist)")
                      : config.file.string())
              << "\n\n"
              << describe_sources(config);
    for (const std::string& note : config.notes) {
      std::cerr << "note: " << note << '\n';
    }
    for (const ForeignSetting& foreign : config.foreign) {
      std::cerr << "note: " << foreign.key << ' ' << foreign.text << " ("
                << foreign.place << ") cannot be launched: " << foreign.advice
                << '\n';
    }
  });
}

} // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "config", "Asks how to train here and writes the configuration file");
  auto file = add_file_option(*command, "Write here, not to the default place");
  add_default(*command);
  add_update(*command);
  add_show(*command);
  command->add_subcommand("options-markdown", "Prints docs/options.md")
      ->group("")
      ->callback([] { std::cout << options_markdown(); });
  command->callback([command, file, &exit_code] {
    if (command->get_subcommands().empty()) {
      exit_code = ask_and_write(*file);
    }
  });
}

} // namespace accelerate
