// SPDX-License-Identifier: Apache-2.0
#include "core/base/programs.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

TEST(InterpreterOf, ReadsTheScriptsThatPipWrites) {
  const TempDir folder;
  const auto script = folder.path() / "script";
  const auto interpreter_in = [&](const std::string& text) {
    std::ofstream(script) << text;
    return interpreter_of(script);
  };
  EXPECT_EQ(interpreter_in("#!/bin/sh\nimport sys\n"), "/bin/sh");
  // pip's form for paths that are long or have spaces.
  std::filesystem::create_directory(folder.path() / "a folder");
  const auto python = folder.path() / "a folder" / "python3";
  std::filesystem::create_symlink("/bin/sh", python);
  EXPECT_EQ(
      interpreter_in(
          "#!/bin/sh\n'''exec' \"" + python.string() +
          "\" \"$0\" \"$@\"\n' '''\nimport sys\n"),
      python);
  EXPECT_EQ(interpreter_in("#!/gone/python3\nimport sys\n"), "");
  EXPECT_EQ(
      interpreter_in("\x7f"
                     "ELF"),
      "");
  EXPECT_EQ(interpreter_of(folder.path() / "missing"), "");
}

} // namespace
} // namespace accelerate::testing
