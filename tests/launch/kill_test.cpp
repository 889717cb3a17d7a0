// SPDX-License-Identifier: Apache-2.0
// Whatever is killed, no process is left: processes are found afterwards by a
// variable that everything below the launcher inherits.
#include <dirent.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "launcher/launch/supervise/process_tree.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

/// A launcher whose processes all have one mark in their environment.
class MarkedLaunch {
 public:
  explicit MarkedLaunch(
      int processes,
      const std::string& script,
      std::vector<std::string> flags = {})
      : mark_("mark-" + folder_.path().filename().string()) {
    std::vector<std::string> command = {
        kProgram, "launch", "--num_processes", std::to_string(processes)};
    command.insert(command.end(), flags.begin(), flags.end());
    command.insert(
        command.end(),
        {"sh", "-c", "touch " + folder_.path().string() + "/$RANK; " + script});
    launcher_ = std::make_unique<Subprocess>(
        command, std::map<std::string, std::string>{{"TEST_MARK", mark_}});
    is_ready_ = eventually(
        [&] {
          for (int rank = 0; rank < processes; ++rank) {
            if (!std::filesystem::exists(
                    folder_.path() / std::to_string(rank))) {
              return false;
            }
          }
          return true;
        },
        kLimit);
  }

  bool is_ready() const { return is_ready_; }
  Subprocess& launcher() { return *launcher_; }

  /// Living processes of the job whose command line contains `part`.
  std::vector<pid_t> processes(const std::string& part = "") const {
    std::vector<pid_t> found;
    DIR* folder = opendir("/proc");
    while (const dirent* entry = readdir(folder)) {
      const std::string process = std::string("/proc/") + entry->d_name;
      if (read_file(process + "/environ").find("TEST_MARK=" + mark_) !=
              std::string::npos &&
          read_file(process + "/status").find("State:\tZ") ==
              std::string::npos &&
          read_file(process + "/cmdline").find(part) != std::string::npos) {
        found.push_back(std::stoi(entry->d_name));
      }
    }
    closedir(folder);
    return found;
  }

  /// The processes that are left after some time.
  std::vector<pid_t> left() {
    eventually([&] { return processes().empty(); }, kLimit);
    return processes();
  }

 private:
  TempDir folder_;
  std::string mark_;
  std::unique_ptr<Subprocess> launcher_;
  bool is_ready_ = false;
};

// A child in the worker's session, and one that left it twice.
constexpr const char* kFamily =
    "sleep 962 & setsid sleep 963 & "
    "(setsid sh -c 'sleep 964 & sleep 965' &); sleep 961; true";
constexpr const char* kDeaf =
    "trap '' TERM INT HUP; sleep 961; sleep 962; true";

class Interrupted : public ::testing::TestWithParam<int> {};

TEST_P(Interrupted, LauncherEndsEverythingAndReturnsTheSignal) {
  MarkedLaunch job(2, kFamily, {"--grace_seconds", "2"});
  ASSERT_TRUE(job.is_ready());
  ASSERT_TRUE(eventually(
      [&] { return !job.processes("sleep\000965").empty(); }, kLimit));
  job.launcher().send(GetParam());
  const auto result = job.launcher().wait(kLimit);
  EXPECT_EQ(result.exit_code, 128 + GetParam()) << result.err;
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST_P(Interrupted, LauncherKillsUnresponsiveWorkers) {
  MarkedLaunch job(2, kDeaf, {"--grace_seconds", "1"});
  ASSERT_TRUE(job.is_ready());
  job.launcher().send(GetParam());
  const auto result = job.launcher().wait(kLimit);
  EXPECT_EQ(result.exit_code, 128 + GetParam()) << result.err;
  EXPECT_THAT(job.left(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Signals,
    Interrupted,
    ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGKILL));

TEST(Kill, OfTheSupervisorProcessEndsGrandchildrenToo) {
  MarkedLaunch job(2, kFamily);
  ASSERT_TRUE(job.is_ready());
  const auto below = descendants_of(job.launcher().pid());
  ASSERT_FALSE(below.empty());
  kill(below[0], SIGKILL);
  const auto result = job.launcher().wait(kLimit);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("every worker was killed"));
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST(Kill, OfAnyRankEndsTheOthersAndNamesIt) {
  for (const int victim : {0, 1, 2}) {
    MarkedLaunch job(3, kFamily);
    ASSERT_TRUE(job.is_ready());
    const std::string rank = "RANK=" + std::to_string(victim);
    for (const pid_t pid : job.processes("sh")) {
      const std::string environment =
          read_file("/proc/" + std::to_string(pid) + "/environ");
      if (environment.find('\0' + rank + '\0') != std::string::npos &&
          read_file("/proc/" + std::to_string(pid) + "/cmdline")
                  .find("touch") != std::string::npos) {
        kill(pid, SIGKILL);
      }
    }
    const auto result = job.launcher().wait(kLimit);
    EXPECT_EQ(result.exit_code, 128 + SIGKILL);
    EXPECT_THAT(
        result.err, HasSubstr("[launch] Rank " + std::to_string(victim)));
    EXPECT_THAT(job.left(), IsEmpty());
  }
}

TEST(Kill, AWorkerThatFailsTakesWhatItStartedWithIt) {
  MarkedLaunch job(
      2,
      "setsid sleep 963 & [ $RANK = 0 ] || { sleep 0.3; exit 4; }; sleep 961");
  const auto result = job.launcher().wait(kLimit);
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST(Kill, AWorkerThatSucceedsLeavesNothingBehindEither) {
  MarkedLaunch job(2, "setsid sh -c \"trap '' TERM; sleep 963; sleep 964\" &");
  const auto result = job.launcher().wait(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(job.left(), IsEmpty());
}

TEST(Kill, ASecondRequestDoesNotWaitForTheGracePeriod) {
  MarkedLaunch job(2, kDeaf, {"--grace_seconds", "900"});
  ASSERT_TRUE(job.is_ready());
  job.launcher().send(SIGTERM);
  EXPECT_TRUE(eventually(
      [&] {
        job.launcher().send(SIGTERM);
        return job.processes("sleep").empty();
      },
      kLimit));
  EXPECT_EQ(job.launcher().wait(kLimit).exit_code, 128 + SIGTERM);
  EXPECT_THAT(job.left(), IsEmpty());
}

} // namespace
} // namespace accelerate::testing
