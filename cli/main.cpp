// SPDX-License-Identifier: Apache-2.0
// The program `accelerate`: registers the commands and turns whatever goes
// wrong into one line and an exit code.
#include <fcntl.h>
#include <signal.h>
#include <sysexits.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/error.h"
#include "accelerate/version.h"
#include "base/printable.h"
#include "base/str.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/program_mark.h"
#include "config/nearest.h"

namespace {

/// Where standard output was closed from the start: the first write fails.
class ClosedOutput : public std::streambuf {};

// A file that is opened later must not become a standard stream.
void open_standard_streams() {
  // Never destroyed: the standard library flushes after everything else.
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

// A limit on file sizes is an error of a write, as a full disk, and no death.
void block_file_size_signal() {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGXFSZ);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
}

/// Commands of the original that only its files and Google's programs need.
struct PythonCommand {
  std::string_view name;
  std::string_view module;
};
constexpr PythonCommand kPythonCommands[] = {
    {"tpu-config", "accelerate.commands.tpu"},
    {"to-fsdp2", "accelerate.commands.to_fsdp2"},
};

std::string explain_unknown_command(
    const CLI::App& app,
    const std::string& name) {
  for (const PythonCommand& command : kPythonCommands) {
    if (command.name == name) {
      return accelerate::str_cat(
          "'", name, "' is run by `python -m ", command.module, "`");
    }
  }
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  const std::string nearest = accelerate::nearest_name(name, names);
  return "unknown command '" + name + "'" +
         (nearest.empty() ? "" : ", did you mean '" + nearest + "'?");
}

void unmark_options(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    option->transform(accelerate::unmarked);
  }
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    unmark_options(*command);
  }
}

/// One line, whatever the message quotes.
void complain(const std::string& message) {
  std::cerr << "accelerate: " << accelerate::printable(message) << '\n';
}

int run(std::vector<std::string> arguments) {
  CLI::App app("Trains on one CPU, many GPUs or many machines.", "accelerate");
  app.set_version_flag("--version", ACCELERATE_VERSION);
  app.require_subcommand(1);
  accelerate::use_readable_help(app);
  int exit_code = 0;
  for (const auto add_command : accelerate::kCommands) {
    add_command(app, exit_code);
  }
  unmark_options(app);
  const std::string first = arguments.empty() ? "" : arguments[0];
  try {
    accelerate::mark_arguments(arguments);
    std::reverse(arguments.begin(), arguments.end()); // As CLI11 wants them.
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error); // --help and --version.
    }
    const bool is_unknown = app.get_subcommands().empty() && !first.empty();
    complain(
        (is_unknown ? explain_unknown_command(app, first)
                    : std::string(error.what())) +
        "; see `accelerate --help`");
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
      std::string("standard output was lost") +
      (errno == 0 ? "" : std::string(" (") + std::strerror(errno) + ")") +
      "; give it a place that can be written to");
  return exit_code == 0 ? EX_IOERR : exit_code;
}
