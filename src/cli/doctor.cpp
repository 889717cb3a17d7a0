// SPDX-License-Identifier: Apache-2.0
// `accelerate doctor`: one line per thing that could go wrong.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "accelerate/process.h"
#include "cli/commands.h"
#include "config/flags.h"
#include "config/resolve.h"
#include "launch/machines/diagnosis.h"

namespace accelerate {

void add_doctor_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Looks for what would go wrong with a launch");
  const auto flags = add_launch_flags(*command);
  command->footer(
      "Takes the options of `launch`. Returns 1 where a launch would fail.");
  command->callback([flags, &exit_code] {
    constexpr const char* kMarks[] = {"ok  ", "hm  ", "BAD "};
    const auto findings =
        diagnose(resolve_launch_config(*flags, system_env), system_env);
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
