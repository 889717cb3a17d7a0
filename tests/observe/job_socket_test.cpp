// SPDX-License-Identifier: Apache-2.0
// Queries of a process, and access control.
#include "core/observe/job_socket.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "accelerate/error.h"
#include "core/observe/runtime_folder.h"
#include "support/temp_dir.h"
#include "support/variables.h"

namespace accelerate {
namespace {

EnvLookup in(const std::filesystem::path& folder) {
  return [folder](const std::string&) {
    return std::optional<std::string>(folder.string());
  };
}

TEST(RuntimeFolder, IsForOneUserAlone) {
  const testing::TempDir parent;
  const auto folder = runtime_folder(in(parent.path()));
  struct stat facts {};
  ASSERT_EQ(stat(folder.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  EXPECT_EQ(runtime_folder(in(parent.path())), folder);
  chmod(folder.c_str(), 0755);
  EXPECT_THROW(runtime_folder(in(parent.path())), SystemError);
}

TEST(RuntimeFolder, RejectsLinksAndFoldersOfOthers) {
  const testing::TempDir parent;
  const testing::TempDir other;
  std::filesystem::create_symlink(other.path(), parent.path() / "accelerate");
  EXPECT_THROW(runtime_folder(in(parent.path())), SystemError);
  std::filesystem::remove(parent.path() / "accelerate");
  if (getuid() == 0) {
    std::filesystem::create_directory(parent.path() / "accelerate");
    chmod((parent.path() / "accelerate").c_str(), 0700);
    ASSERT_EQ(chown((parent.path() / "accelerate").c_str(), 54321, 54321), 0);
    EXPECT_THROW(runtime_folder(in(parent.path())), SystemError);
  }
}

TEST(JobSocket, AnswersItsUser) {
  const testing::TempDir parent;
  setenv("XDG_RUNTIME_DIR", parent.path().c_str(), 1);
  EXPECT_FALSE(ask_process(getpid()).has_value());
  {
    const JobSocket socket;
    struct stat facts {};
    ASSERT_EQ(
        stat(socket_of(parent.path() / "accelerate", getpid()).c_str(), &facts),
        0);
    EXPECT_EQ(facts.st_mode & 0777, 0600u);
    std::thread listener([&] {
      socket.answer([] {
        RankReport report;
        report.rank = 5;
        return std::vector<RankReport>{report};
      });
    });
    const auto reports = ask_process(getpid());
    listener.join();
    ASSERT_TRUE(reports.has_value());
    ASSERT_EQ(reports->size(), 1u);
    EXPECT_EQ((*reports)[0].rank, 5);
  }
  EXPECT_FALSE(ask_process(getpid()).has_value());
  unsetenv("XDG_RUNTIME_DIR");
}

TEST(JobSocket, RemovesThoseOfTheDead) {
  const testing::TempDir parent;
  setenv("XDG_RUNTIME_DIR", parent.path().c_str(), 1);
  const auto dead = socket_of(runtime_folder(system_env), 4194303);
  std::ofstream(dead) << "";
  const JobSocket socket;
  EXPECT_FALSE(std::filesystem::exists(dead));
  unsetenv("XDG_RUNTIME_DIR");
}

} // namespace
} // namespace accelerate
