// SPDX-License-Identifier: Apache-2.0
// `accelerate new`; tests/build/package_test.py builds and runs what it writes.
#include <gmock/gmock.h>

#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNewProgram = TEST_BIN_DIR "/accelerate";

TEST(New, WritesAProjectAndSaysHowToRunIt) {
  const TempDir parent;
  const auto folder = parent.path() / "mine";
  auto result = run_process({kNewProgram, "new", folder.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cmake --build " + folder.string()));
  EXPECT_THAT(result.out, HasSubstr("accelerate launch --num_processes 2 "));
  EXPECT_THAT(
      read_file(folder / "CMakeLists.txt"),
      HasSubstr("target_precompile_headers"));
  EXPECT_THAT(read_file(folder / "train.cpp"), HasSubstr("backward"));
  // What is there is not written over.
  result = run_process(
      {kNewProgram, "new", folder.string(), "--language", "python"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("is there already"));
  EXPECT_FALSE(std::filesystem::exists(folder / "train.py"));
}

TEST(New, KnowsPython) {
  const TempDir parent;
  const auto folder = parent.path() / "mine";
  const auto result = run_process(
      {kNewProgram, "new", folder.string(), "--language", "python"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("python " + folder.string()));
  // What it says can be copied into a shell.
  const auto odd = parent.path() / "it's new";
  EXPECT_THAT(
      run_process({kNewProgram, "new", odd.string()}).out,
      HasSubstr("cmake -S '" + parent.path().string() + "/it'\\''s new' -B "));
  EXPECT_THAT(read_file(folder / "train.py"), HasSubstr("Accelerator()"));
}

} // namespace
} // namespace accelerate::testing
