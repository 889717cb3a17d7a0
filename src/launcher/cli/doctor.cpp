// SPDX-License-Identifier: Apache-2.0
// `accelerate doctor`: one line per check, or per rank of a running job.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>

#include "accelerate/error.h"
#include "accelerate/process.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/config/flags.h"
#include "core/config/resolve.h"
#include "core/observe/job_socket.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/cli/python_packages.h"
#include "launcher/launch/machines/diagnosis.h"
#include "launcher/launch/plan/plan.h"
#include "launcher/launch/plan/shell_quote.h"
#include "launcher/launch/supervise/process_tree.h"

namespace accelerate {

namespace {

/// Prints where each rank under `job` is; returns whether there are any.
bool print_ranks(int job) {
  auto processes = descendants_of(job);
  processes.insert(processes.begin(), job);
  bool has_ranks = false;
  for (const auto process : processes) {
    try {
      const auto reports = ask_process(process);
      if (reports && !reports->empty()) {
        has_ranks = true;
        std::cout << describe_ranks(*reports);
      }
    } catch (const TimeoutError& error) {
      has_ranks = true;
      std::cout << error.what() << '\n';
    }
  }
  return has_ranks;
}

/// Whether the training library can be loaded. In a Python package the
/// self-check is a script, whose last line describes the problem. It runs with
/// the Python that `launch` uses for scripts.
Finding look_at_training_library(const std::filesystem::path& selftest) {
  if (!is_script(selftest)) {
    return check_libraries(selftest);
  }
  const std::string python = find_python();
  const auto said = first_line_of(
      shell_quoted(python) + " " + shell_quoted(selftest.string()) +
      " --load 2>&1 | tail -n 1");
  return said.empty()
             ? Finding{CheckResult::kPassed, "the training library finds torch"}
             : Finding{
                   CheckResult::kFailed,
                   str_cat(said, " (with ", python, ")"),
                   str_cat("run `", python, " -m pip check` for details")};
}

} // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Find problems that would make a launch fail, or show where a job hangs");
  command->group(kInspectCommands);
  const auto flags = add_launch_flags(*command);
  const auto job = std::make_shared<int>(0);
  command
      ->add_option(
          "--job",
          *job,
          "Show where each rank of a running job is: in which collective, data "
          "loader or line of your code. PID is the process ID of the launcher "
          "or of a rank")
      ->type_name("PID")
      ->check(whole_number_from(1, std::numeric_limits<int>::max()));
  command->footer(
      "The exit code is 1 if a launch would fail, or if --job finds no ranks.");
  command->callback([flags, job, &exit_code] {
    if (*job > 0) {
      if (kill(*job, 0) != 0 && errno == ESRCH) {
        std::cerr << "[doctor] No process " << *job
                  << " on this machine. The process has exited or is running "
                     "on another machine\n";
        exit_code = kExitFailure;
      } else if (!print_ranks(*job)) {
        std::cerr << "[doctor] No accelerate processes found under PID " << *job
                  << ". Pass the launcher's PID, and run this command on the "
                     "same machine and as the same user\n";
        exit_code = kExitFailure;
      }
      return;
    }
    constexpr const char* kMarks[] = {"ok  ", "hm  ", "BAD "};
    auto findings =
        diagnose(resolve_launch_config(*flags, system_env), system_env);
    if (std::filesystem::exists(selftest_program())) {
      findings.push_back(look_at_training_library(selftest_program()));
    }
    for (const auto& finding : findings) {
      std::cout << kMarks[static_cast<size_t>(finding.result)] << finding.what;
      if (!finding.remedy.empty()) {
        std::cout << ": " << finding.remedy;
      }
      std::cout << '\n';
    }
    const bool is_bad =
        std::any_of(findings.begin(), findings.end(), [](const Finding& one) {
          return one.result == CheckResult::kFailed;
        });
    exit_code = is_bad ? kExitFailure : 0;
  });
}

} // namespace accelerate
