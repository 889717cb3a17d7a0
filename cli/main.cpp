// SPDX-License-Identifier: Apache-2.0
// The program `accelerate`: registers the commands and turns errors into one
// line and an exit code.
#include <fcntl.h>
#include <signal.h>
#include <sysexits.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/error.h"
#include "accelerate/version.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/config/nearest.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/cli/program_mark.h"

namespace {

/// For a standard output that was closed from the start: every write fails.
class ClosedOutput : public std::streambuf {};

// A file that is opened later must not become a standard stream.
void open_standard_streams() {
  // Never destroyed, because the standard library flushes at the very end.
  static auto* const closed = new ClosedOutput;
  for (int file = STDIN_FILENO; file <= STDERR_FILENO; ++file) {
    if (fcntl(file, F_GETFD) < 0) {
      [[maybe_unused]] const int opened =
          open("/dev/null", file == STDIN_FILENO ? O_RDONLY : O_WRONLY);
      if (file == STDOUT_FILENO) {
        std::cout.rdbuf(closed);
      }
    }
  }
}

// A limit on file sizes should fail writes, like a full disk, rather than kill
// the process.
void block_file_size_signal() {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGXFSZ);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
}

/// Commands of the original that depend only on its files and Google's
/// programs.
struct PythonCommand {
  std::string_view name;
  std::string_view module;
};
constexpr PythonCommand kPythonCommands[] = {
    {"tpu-config", "accelerate.commands.tpu"},
    {"to-fsdp2", "accelerate.commands.to_fsdp2"},
};

/// Empty if `app` has the command.
std::string explain_unknown_command(
    const CLI::App& app,
    const std::string& name) {
  std::vector<std::string> names = {"help", "version"};
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    return {};
  }
  for (const PythonCommand& command : kPythonCommands) {
    if (command.name == name) {
      return accelerate::str_cat(
          "'",
          name,
          "' is a command of the Python package; run `python -m ",
          command.module,
          "`");
    }
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(name, ignored)) {
    return accelerate::str_cat(
        "'",
        name,
        "' is a file, not a command; did you mean `accelerate launch ",
        name,
        "`?");
  }
  const std::string nearest = accelerate::nearest_name(name, names);
  return accelerate::str_cat(
      "unknown command '",
      name,
      "'; ",
      nearest.empty() ? "`accelerate --help` lists all commands"
                      : "did you mean '" + nearest + "'?");
}

/// `help launch` is `launch --help`, and `version` is `--version`.
void expand_shorthands(std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "help") {
    arguments.erase(arguments.begin());
    arguments.push_back("--help");
  } else if (arguments == std::vector<std::string>{"version"}) {
    arguments[0] = "--version";
  }
}

/// The command that was being parsed: `config show`, or `app` itself.
const CLI::App& deepest_command(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : deepest_command(*parsed.back());
}

void unmark_options(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    option->transform(accelerate::unmarked);
  }
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    unmark_options(*command);
  }
}

/// Prints one line, whatever the message quotes.
void complain(const std::string& message) {
  std::cerr << "accelerate: " << accelerate::printable(message) << '\n';
}

int run(std::vector<std::string> arguments) {
  CLI::App app(
      "Runs your training program on one CPU, many GPUs or many machines.",
      "accelerate");
  app.set_version_flag("-V,--version", ACCELERATE_VERSION, "Show the version");
  accelerate::use_readable_help(app);
  app.footer(
      "`accelerate COMMAND --help` shows the options of a command.\n"
      "`accelerate` without a command shows what is installed and suggests "
      "next steps.");
  int exit_code = 0;
  for (const auto add_command : accelerate::kCommands) {
    add_command(app, exit_code);
  }
  unmark_options(app);
  try {
    if (arguments.empty()) {
      accelerate::print_overview();
      return 0;
    }
    expand_shorthands(arguments);
    const std::string unknown =
        arguments[0].starts_with('-')
            ? std::string()
            : explain_unknown_command(app, arguments[0]);
    if (!unknown.empty()) {
      complain(unknown);
      return accelerate::kExitUsage;
    }
    accelerate::mark_arguments(arguments);
    std::reverse(arguments.begin(), arguments.end()); // CLI11's order
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error); // --help and --version.
    }
    complain(accelerate::explain_parse_error(error, deepest_command(app)));
    return accelerate::kExitUsage;
  } catch (const accelerate::Error& error) {
    complain(error.what());
    return accelerate::kExitUsage;
  } catch (const std::exception& error) {
    complain(std::string("internal error: ") + error.what());
    return accelerate::kExitFailure;
  }
  return exit_code;
}

} // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  block_file_size_signal();
  const int exit_code = run({argv + 1, argv + argc});
  errno = 0;
  if (std::cout.flush()) {
    return exit_code;
  }
  complain(
      std::string("cannot write to standard output") +
      (errno == 0 ? "" : std::string(" (") + std::strerror(errno) + ")") +
      "; redirect it to a writable file or pipe");
  return exit_code == 0 ? EX_IOERR : exit_code;
}
