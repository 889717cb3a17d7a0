// SPDX-License-Identifier: Apache-2.0
// The program `accelerate`: registers the commands and turns whatever goes
// wrong into one line and an exit code.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>

#include "accelerate/error.h"
#include "accelerate/version.h"
#include "cli/commands.h"
#include "cli/help.h"

int main(int argc, char** argv) {
  CLI::App app("Trains on one CPU, many GPUs or many machines.", "accelerate");
  app.set_version_flag("--version", ACCELERATE_VERSION);
  app.require_subcommand(1);
  accelerate::use_readable_help(app);
  int exit_code = 0;
  for (const auto add_command : accelerate::kCommands) {
    add_command(app, exit_code);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error); // --help and --version.
    }
    const bool is_unknown = app.get_subcommands().empty() && argc > 1;
    std::cerr << "accelerate: "
              << (is_unknown ? std::string("unknown command '") + argv[1] + "'"
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
