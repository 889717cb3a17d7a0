// SPDX-License-Identifier: Apache-2.0
// `accelerate config`: creates, updates and shows configuration files.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "accelerate/process.h"
#include "core/base/str.h"
#include "core/config/config_file.h"
#include "core/config/describe.h"
#include "core/config/fields.h"
#include "core/config/flags.h"
#include "core/config/questionnaire.h"
#include "core/config/resolve.h"
#include "core/hardware/gpu_kinds.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/launch/plan/shell_quote.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

int count_gpus() {
  return static_cast<int>(usable_gpus(gpu_kinds(), system_env).gpus.size());
}

/// The value of `--config_file`, which `config` and its commands share: it may
/// precede or follow the name of the command.
using FileName = std::shared_ptr<std::string>;

void add_file_option(
    CLI::App& command,
    const FileName& file,
    const std::string& help) {
  command.add_option(flag_spellings("config_file", 0), *file, help)
      ->type_name("FILE");
}

fs::path path_or_default(const std::string& path) {
  return path.empty() ? default_config_path(system_env) : fs::path(path);
}

/// Prints the final message of a command that has written a file.
void announce(
    const fs::path& path,
    const LaunchConfig& config,
    bool is_default_file) {
  std::cout << "accelerate configuration saved at " << path.string() << "\n  "
            << summarize(config, count_gpus()) << "\nNext: accelerate launch "
            << (is_default_file
                    ? std::string()
                    : "--config_file " + shell_quoted(path.string()) + " ")
            << "train.py\n";
}

/// The values of the file that is going to be replaced, if it can be read.
std::optional<LaunchConfig> present_config(
    const fs::path& path,
    Prompter& prompter) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return std::nullopt;
  }
  try {
    return values_of(read_config_file(path));
  } catch (const ConfigError& error) {
    prompter.say(str_cat(
        "The existing file cannot be read, so the questions start from the "
        "defaults: ",
        error.what()));
    return std::nullopt;
  }
}

int ask_and_write(const std::string& file) {
  const fs::path path = path_or_default(file);
  // Throws if the file cannot be written, before any question.
  config_target(path);
  const bool is_terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
  const auto prompter =
      is_terminal ? make_terminal_prompter(STDIN_FILENO, STDERR_FILENO)
                  : make_plain_prompter(std::cin, std::cerr);
  try {
    const LaunchConfig config = ask_for_config(
        *prompter,
        {.num_gpus = count_gpus(),
         .present = present_config(path, *prompter),
         .home = home_folder(system_env)});
    std::error_code ignored;
    if (fs::exists(path, ignored) &&
        !ask_yes_or_no(*prompter, "Replace " + path.string() + "?", true)) {
      std::cerr << "accelerate: [config] nothing was written\n";
      return kExitFailure;
    }
    write_config_file(path, to_document(config));
    announce(path, config, file.empty());
    return 0;
  } catch (const Interrupted& interrupted) {
    std::cerr << "\naccelerate: " << interrupted.what() << '\n';
    return kExitInterrupted;
  }
}

void add_default(CLI::App& config, const FileName& file) {
  CLI::App* command = config.add_subcommand(
      "default",
      "Write a default configuration for this machine without asking "
      "questions");
  add_file_option(*command, file, "File to write");
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
          "' already exists. Remove the file first, or run `accelerate config` "
          "to change it"));
    }
    write_config_file(path, to_document(config));
    announce(path, config, file->empty());
  });
}

void add_update(CLI::App& config, const FileName& file) {
  CLI::App* command = config.add_subcommand(
      "update",
      "Convert a configuration file from an older version to the current "
      "format");
  add_file_option(*command, file, "File to update");
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
      "show",
      "Print the values that a launch would use, and where each one is set");
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
                << foreign.location << "): " << foreign.advice << '\n';
    }
  });
}

} // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "config",
      "Choose processes, GPUs and precision, and save them to a file");
  command->group(kTrainCommands);
  auto file = std::make_shared<std::string>();
  add_file_option(*command, file, "File to write");
  add_default(*command, file);
  add_update(*command, file);
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
