// SPDX-License-Identifier: Apache-2.0
// The completion scripts in their shells.
#include <gmock/gmock.h>

#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;

// Debian's, whatever other shell is on the PATH.
std::string find_shell(const std::string& name) {
  const std::string path = "/usr/bin/" + name;
  return std::filesystem::exists(path) ? path : "";
}

/// What bash proposes for the last of `words`.
std::string bash_proposes(const std::string& words, int index) {
  const auto result = run_process(
      {find_shell("bash"),
       "-c",
       "source <(" + kProgram + " completion bash); COMP_WORDS=(" + words +
           "); COMP_CWORD=" + std::to_string(index) +
           "; _accelerate; echo \"${COMPREPLY[*]}\""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

TEST(Completion, OfBashKnowsCommandsOptionsAndChoices) {
  if (find_shell("bash").empty()) {
    GTEST_SKIP() << "bash is not installed";
  }
  EXPECT_EQ(bash_proposes("accelerate con", 1), "config\n");
  EXPECT_EQ(bash_proposes("accelerate config ''", 2), "default update show\n");
  EXPECT_EQ(
      bash_proposes("accelerate config show --num", 3),
      "--num_processes --num_cpu_threads_per_process --num_machines\n");
  for (const char* spelling : {"--mixed_precision", "--mixed-precision"}) {
    EXPECT_EQ(
        bash_proposes(
            std::string("accelerate config show ") + spelling + " ''", 4),
        "no fp16 bf16\n");
  }
}

TEST(Completion, OfFishKnowsCommandsOptionsAndChoices) {
  const std::string fish = find_shell("fish");
  if (fish.empty()) {
    GTEST_SKIP() << "fish is not installed";
  }
  const auto result = run_process(
      {fish,
       "--no-config",
       "-c",
       kProgram + " completion fish | source; complete -C 'accelerate con';"
                  "complete -C 'accelerate config sh';"
                  "complete -C 'accelerate config show --mixed_precision b';"
                  "complete -C 'accelerate config show --num_m'"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part :
       {"config\t", "show\t", "bf16\t", "--num_machines\t"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(Completion, OfZshIsAScriptThatZshTakes) {
  const std::string zsh = find_shell("zsh");
  if (zsh.empty()) {
    GTEST_SKIP() << "zsh is not installed";
  }
  const auto result = run_process(
      {zsh,
       "-f",
       "-c",
       "autoload -Uz compinit && compinit -D -u; source <(" + kProgram +
           " completion zsh); print $_comps[accelerate]; "
           "print $+functions[_accelerate_config_show]"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "_accelerate\n1\n");
}

TEST(Completion, NamesTheShellsThatItKnows) {
  const auto result = run_process({kProgram, "completion", "tcsh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("bash, zsh, fish or json"));
}

} // namespace
} // namespace accelerate::testing
