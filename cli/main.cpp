// SPDX-License-Identifier: Apache-2.0
// The program `accelerate`: registers the commands and turns whatever goes
// wrong into one line and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "accelerate/error.h"
#include "accelerate/version.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/program_mark.h"
#include "config/nearest.h"

namespace {

// A file that is opened later must not become a standard stream.
void open_standard_streams() {
  for (int file = STDIN_FILENO; file <= STDERR_FILENO; ++file) {
    if (fcntl(file, F_GETFD) < 0) {
      [[maybe_unused]] const int opened =
          open("/dev/null", file == STDIN_FILENO ? O_RDONLY : O_WRONLY);
    }
  }
}

std::string explain_unknown_command(
    const CLI::App& app,
    const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  const std::string nearest = accelerate::nearest_name(name, names);
  return "unknown command '" + name + "'" +
         (nearest.empty() ? "" : ", did you mean '" + nearest + "'?");
}

} // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  CLI::App app("Trains on one CPU, many GPUs or many machines.", "accelerate");
  app.set_version_flag("--version", ACCELERATE_VERSION);
  app.require_subcommand(1);
  accelerate::use_readable_help(app);
  int exit_code = 0;
  for (const auto add_command : accelerate::kCommands) {
    add_command(app, exit_code);
  }
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    accelerate::mark_program(arguments);
    std::reverse(arguments.begin(), arguments.end()); // As CLI11 wants them.
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error); // --help and --version.
    }
    const bool is_unknown = app.get_subcommands().empty() && argc > 1;
    std::cerr << "accelerate: "
              << (is_unknown ? explain_unknown_command(app, argv[1])
                             : error.what())
              << "; see `accelerate --help`\n";
    return accelerate::kExitUsage;
  } catch (const accelerate::Error& error) {
    std::cerr << "accelerate: " << error.what() << '\n';
    return accelerate::kExitUsage;
  } catch (const std::exception& error) {
    std::cerr << "accelerate: internal error: " << error.what() << '\n';
    return accelerate::kExitFailure;
  }
  return exit_code;
}
