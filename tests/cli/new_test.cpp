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
  auto result =
      run_process({kNewProgram, "new", folder.string(), "--language", "cpp"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const std::string& step :
       {"\n  cd " + folder.string() + "\n",
        std::string(" && cmake --build build\n"),
        std::string("\n  accelerate launch --num_processes 2 build/train\n"),
        std::string("\n  accelerate watch runs\n"),
        std::string("\n      resume from the last checkpoint ")}) {
    EXPECT_THAT(result.out, HasSubstr(step));
  }
  EXPECT_THAT(
      read_file(folder / "CMakeLists.txt"),
      HasSubstr("target_precompile_headers"));
  EXPECT_THAT(read_file(folder / "train.cpp"), HasSubstr("backward"));
  // Existing files are not overwritten.
  result = run_process(
      {kNewProgram, "new", folder.string(), "--language", "python"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("already exists"));
  EXPECT_FALSE(std::filesystem::exists(folder / "train.py"));
}

// The program in a build folder has no CMake package.
TEST(New, WritesPythonByDefaultWithoutACMakePackage) {
  const TempDir parent;
  const auto folder = parent.path() / "mine";
  const auto result = run_process({kNewProgram, "new", folder.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      HasSubstr("\n  accelerate launch --num_processes 2 train.py\n"));
  // Its output can be copied into a shell.
  const auto odd = parent.path() / "it's new";
  EXPECT_THAT(
      run_process({kNewProgram, "new", odd.string()}).out,
      HasSubstr("\n  cd '" + parent.path().string() + "/it'\\''s new'\n"));
  EXPECT_THAT(read_file(folder / "train.py"), HasSubstr("Accelerator("));
}

} // namespace
} // namespace accelerate::testing
