// SPDX-License-Identifier: Apache-2.0
// A real training on machines that join and leave: elastic_trainer.cpp.
#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <set>
#include <sstream>

#include "support/cluster.h"
#include "support/program.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

const std::string kTrainer = std::string(TEST_BIN_DIR) + "/elastic_trainer";
constexpr int kNumSamples = 70;

/// What one rank has logged since it started from a checkpoint.
struct Life {
  std::vector<std::vector<int>> samples;
  std::vector<std::string> losses;
  /// The number of steps when each was saved.
  std::map<std::string, size_t> saved;
  bool is_paused = false;
};

/// Hosts on a separate network, one worker on each.
class ElasticTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = Cluster::why_not();
    if (!reason.empty()) {
      GTEST_SKIP() << reason;
    }
    cluster_ = std::make_unique<Cluster>(4);
    fs::create_directory(folder_.path() / "log");
  }
  void TearDown() override {
    for (size_t host = 0; host < launchers_.size(); ++host) {
      kill_machine(host);
    }
  }

  /// The same command on every host, without ranks.
  void start_machine(int host) {
    launchers_.push_back(cluster_->start(
        host,
        {kProgram,
         "launch",
         "--cpu",
         "--num_machines",
         "2:3",
         "--main_process_ip",
         cluster_->address(0),
         "--num_processes",
         "3",
         "--heartbeat_seconds",
         "3",
         kTrainer,
         folder_.path()},
        {{"TEST_MARK", mark(launchers_.size())},
         {"ACCELERATE_JOB_TOKEN", "of this test"}}));
  }
  /// The launcher and its workers, as in a power failure.
  void kill_machine(size_t number) const {
    for (const pid_t pid : processes_with("TEST_MARK=" + mark(number))) {
      ::kill(pid, SIGKILL);
    }
  }
  std::string mark(size_t number) const {
    return folder_.path().filename().string() + '.' + std::to_string(number);
  }

  Life read(const std::string& from, int world_size, int rank) const {
    Life life;
    std::ifstream file(
        folder_.path() / "log" /
        (from + '.' + std::to_string(world_size) + '.' + std::to_string(rank)));
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string word;
      std::vector<int> ids;
      while (words >> word && std::isdigit(word[0])) {
        ids.push_back(std::stoi(word));
      }
      if (word == "saved") {
        words >> word;
        life.saved[word] = life.samples.size();
      } else if (word == "pause") {
        life.is_paused = true;
      } else if (words >> word) {
        life.samples.push_back(ids);
        life.losses.push_back(word);
      }
    }
    return life;
  }
  bool wait_for_pause(const std::string& from, int world_size) const {
    return eventually(
        [&] {
          for (int rank = 0; rank < world_size; ++rank) {
            if (!read(from, world_size, rank).is_paused) {
              return false;
            }
          }
          return true;
        },
        kLimit);
  }
  /// Adds what all ranks saw in their first `num_steps`.
  void count(
      const std::string& from,
      int world_size,
      size_t num_steps,
      std::multiset<int>& seen) const {
    for (int rank = 0; rank < world_size; ++rank) {
      const auto life = read(from, world_size, rank);
      ASSERT_GE(life.samples.size(), num_steps) << from << ' ' << rank;
      for (size_t step = 0; step < num_steps; ++step) {
        seen.insert(life.samples[step].begin(), life.samples[step].end());
      }
    }
  }
  void expect_the_losses_of_a_reference(const std::string& from, int size)
      const {
    const auto result = run_process(
        {kProgram,
         "launch",
         "--cpu",
         "--num_processes",
         std::to_string(size),
         kTrainer,
         folder_.path(),
         from},
        {},
        kLimit);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (int rank = 0; rank < size; ++rank) {
      const auto expected = read(from + ".reference", size, rank).losses;
      auto losses = read(from, size, rank).losses;
      ASSERT_EQ(expected.size(), 5u);
      losses.resize(expected.size());
      EXPECT_EQ(losses, expected) << from << ", rank " << rank;
    }
  }

  TempDir folder_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Subprocess>> launchers_;
};

// Three machines make five steps of six samples and save after four; two resume
// from there with four samples per step; a third joins, and they resume in the
// middle of one of its steps.
TEST_F(ElasticTraining, SeesEverySampleOnceFromTheCheckpointOn) {
  for (int host = 0; host < 3; ++host) {
    start_machine(host);
  }
  ASSERT_TRUE(wait_for_pause("none", 3)) << launchers_[0]->err();
  kill_machine(1);
  ASSERT_TRUE(wait_for_pause("checkpoint_1", 2)) << launchers_[0]->err();
  start_machine(3);
  ASSERT_TRUE(wait_for_pause("checkpoint_3", 3)) << launchers_[0]->err();
  std::ofstream(folder_.path() / "go") << '\n';
  for (const size_t machine : {0, 2, 3}) {
    EXPECT_EQ(launchers_[machine]->wait(kLimit).exit_code, 0)
        << launchers_[machine]->err();
  }

  EXPECT_EQ(read("none", 3, 0).saved.at("checkpoint_1"), 4u);
  EXPECT_EQ(read("checkpoint_1", 2, 0).saved.at("checkpoint_3"), 4u);
  std::multiset<int> seen;
  count("none", 3, 4, seen);
  count("checkpoint_1", 2, 4, seen);
  count("checkpoint_3", 3, read("checkpoint_3", 3, 0).samples.size(), seen);
  std::multiset<int> all;
  for (int id = 0; id < kNumSamples; ++id) {
    all.insert(id);
  }
  EXPECT_EQ(seen, all);
  expect_the_losses_of_a_reference("checkpoint_1", 2);
  expect_the_losses_of_a_reference("checkpoint_3", 3);

  std::set<std::string> kept;
  for (const auto& entry :
       fs::directory_iterator(folder_.path() / "checkpoints")) {
    kept.insert(entry.path().filename());
  }
  EXPECT_THAT(
      kept,
      ElementsAre(
          "checkpoint_1",
          "checkpoint_2",
          "checkpoint_3",
          "checkpoint_4",
          "checkpoint_5"));
}

TEST_F(ElasticTraining, EndsWithMachineZeroInOneLine) {
  for (int host = 0; host < 3; ++host) {
    start_machine(host);
  }
  ASSERT_TRUE(wait_for_pause("none", 3)) << launchers_[0]->err();
  const std::string before = launchers_[1]->err();
  kill_machine(0);
  for (const size_t machine : {1, 2}) {
    const auto result = launchers_[machine]->wait(kLimit);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("the job is over"));
  }
  // One line says that it is lost and awaited, one that the job is over.
  std::istringstream after(launchers_[1]->err().substr(before.size()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(after, line);) {
    lines.push_back(line);
  }
  EXPECT_THAT(
      lines,
      ElementsAre(
          HasSubstr("is lost"),
          HasSubstr("did not return (Connection refused), so the job is "
                    "over; launch it again")));
  for (size_t machine = 0; machine < launchers_.size(); ++machine) {
    EXPECT_THAT(processes_with("TEST_MARK=" + mark(machine)), IsEmpty());
  }
}

} // namespace
} // namespace accelerate::testing
