// SPDX-License-Identifier: Apache-2.0
// Commands that only print fail if their output is lost.
#include <gmock/gmock.h>

#include "sizing/small_llama.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using safetensors::Dtype;
using ::testing::StartsWith;

TEST(LostOutput, PrintsOneLineAndFails) {
  TempDir folder;
  const std::string model = write_llama(folder, Dtype::kF32, 4);
  for (const std::string& command :
       {std::string("--help"),
        std::string("--version"),
        std::string("env"),
        std::string("completion bash"),
        std::string("launch --help"),
        std::string("launch --dry_run true"),
        std::string("config show"),
        "estimate-memory " + model}) {
    for (const char* place : {" >/dev/full", " >&-"}) {
      const auto result =
          run_process({"bash", "-c", kProgram + ' ' + command + place});
      EXPECT_EQ(result.exit_code, 74) << command << place;
      EXPECT_THAT(
          result.err,
          StartsWith("accelerate: cannot write to standard output"));
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
          << result.err;
    }
  }
}

TEST(LostOutput, IsIgnoredIfThereWasNoOutput) {
  const auto result = run_process(
      {"bash", "-c", kProgram + " launch --num_processes 2 true >&-"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

} // namespace
} // namespace accelerate::testing
