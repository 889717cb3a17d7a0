// SPDX-License-Identifier: Apache-2.0
// `accelerate doctor`: one line per thing that could go wrong.
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
#include "cli/commands.h"
#include "config/flags.h"
#include "config/resolve.h"
#include "launch/machines/diagnosis.h"
#include "launch/supervise/process_tree.h"
#include "observe/job_socket.h"

namespace accelerate {

namespace {

/// Where the ranks are that `job`, a launcher or one of them, has here.
/// Returns whether there are any.
bool print_places(int job) {
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

} // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Looks for what would go wrong with a launch, or where a running job is");
  const auto flags = add_launch_flags(*command);
  const auto job = std::make_shared<int>(0);
  command
      ->add_option(
          "--job",
          *job,
          "Ask the ranks of this process, a launcher or one of them, where "
          "they are: in which collective, data loader or line of yours")
      ->type_name("PID")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  command->footer(
      "Takes the options of `launch`. Returns 1 where a launch would fail.\n"
      "With --job: the ranks on this machine; returns 1 where there are none.");
  command->callback([flags, job, &exit_code] {
    if (*job > 0) {
      if (kill(*job, 0) != 0 && errno == ESRCH) {
        std::cerr << "[doctor] there is no process " << *job
                  << " on this machine: it has ended, or runs elsewhere\n";
        exit_code = kExitFailure;
      } else if (!print_places(*job)) {
        std::cerr << "[doctor] process " << *job
                  << " and its children run no rank that can be asked; give "
                     "the launcher's process or a rank's, of this user and "
                     "this machine\n";
        exit_code = kExitFailure;
      }
      return;
    }
    constexpr const char* kMarks[] = {"ok  ", "hm  ", "BAD "};
    auto findings =
        diagnose(resolve_launch_config(*flags, system_env), system_env);
    if (std::filesystem::exists(selftest_program())) {
      findings.push_back(look_at_libraries(selftest_program()));
    }
    for (const auto& finding : findings) {
      std::cout << kMarks[static_cast<size_t>(finding.verdict)] << finding.what;
      if (!finding.remedy.empty()) {
        std::cout << ": " << finding.remedy;
      }
      std::cout << '\n';
    }
    const bool is_bad =
        std::any_of(findings.begin(), findings.end(), [](const Finding& one) {
          return one.verdict == Verdict::kBad;
        });
    exit_code = is_bad ? kExitFailure : 0;
  });
}

} // namespace accelerate
