// SPDX-License-Identifier: Apache-2.0
#include "core/base/small_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "accelerate/error.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;

std::string complaint(const std::filesystem::path& path) {
  try {
    read_small_file(path, "the host file");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(SmallFile, IsReadWhole) {
  TempDir folder;
  const std::string text(100000, 'x');
  EXPECT_EQ(read_small_file(folder.write("a", text), "it"), text);
  EXPECT_EQ(read_small_file(folder.write("b", ""), "it"), "");
}

TEST(SmallFile, EndlessIsRejectedEarly) {
  EXPECT_THAT(
      complaint("/dev/zero"),
      HasSubstr("the host file '/dev/zero' has more than 1048576 bytes"));
}

TEST(SmallFile, PipeWithoutAWriterDoesNotHang) {
  TempDir folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(complaint(pipe), HasSubstr("a pipe without a writer"));
}

TEST(SmallFile, UnreadableReportsTheCause) {
  TempDir folder;
  EXPECT_THAT(complaint(folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(
      complaint(folder.path() / "none"),
      HasSubstr("No such file or directory"));
}

} // namespace
} // namespace accelerate::testing
