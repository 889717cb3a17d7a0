// SPDX-License-Identifier: Apache-2.0
// Saves that are delayed and killed before each of their file-system calls.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>

#include "accelerate/error.h"
#include "checkpoint/saving.h"
#include "checkpoint/stepped_process.h"
#include "support/long_run.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

// Tests begin with moment 1 and save moment 2.
constexpr std::int64_t kOld = 1;
constexpr std::int64_t kNew = 2;
constexpr std::int64_t kRepair = 5;
constexpr std::int64_t kNext = 9;

/// A checkpoint as a reader sees it.
struct Seen {
  std::int64_t moment = 0;
  /// The ranks whose parts exist.
  std::vector<int> ranks = {};
};

/// Empty if there is no checkpoint. Throws if it is damaged or mixes two saves.
std::optional<Seen> see(const fs::path& target) {
  std::optional<Seen> seen;
  if (!is_checkpoint(target)) {
    return seen;
  }
  read_checkpoint(target, [&](const CheckpointReader& checkpoint) {
    checkpoint.verify();
    const auto& manifest = checkpoint.manifest();
    for (const auto& [name, record] : manifest.files) {
      const auto text = read_file(checkpoint.find(name, record));
      if (text != name + std::to_string(manifest.moment)) {
        throw DataError(name + " holds '" + text + "'");
      }
    }
    seen = Seen{manifest.moment};
    for (int rank = 0; rank < kNumRanks; ++rank) {
      if (const auto shard = checkpoint.rank_shard(rank)) {
        seen->ranks.push_back(rank);
        if (shard->saved_at != manifest.saved_at) {
          throw DataError("a part is of another save");
        }
      }
    }
    if (manifest.is_of_all && seen->ranks != std::vector<int>{1, 2}) {
      throw DataError("a part of a save of all ranks is missing");
    }
  });
  return seen;
}

/// What exists when the roles start.
enum class Start { kNothing, kUsersFolder, kOldCheckpoint, kNewCheckpoint };

/// What one process does.
enum class Role {
  kWriter,
  kRank1,
  kRank2,
  kLateRank1,
  /// A writer that finds leftovers of another one.
  kRepairer,
  /// All ranks in one process, in the order that their collectives ensure.
  kAllRanks,
  kReader,
  kRemover,
};

const char* name_of(Role role) {
  constexpr const char* kNames[] = {
      "writer",
      "rank 1",
      "rank 2",
      "late rank 1",
      "repairer",
      "all ranks",
      "reader",
      "remover"};
  return kNames[static_cast<int>(role)];
}

void save_of_all(const fs::path& target) {
  auto manifest = manifest_of(kNew);
  manifest.is_of_all = true;
  manifest.saved_at = 1000; // different from that of the previous checkpoint
  CheckpointWriter writer(target, kNew);
  for (const int rank : {1, 2}) {
    RankShardWriter shard_writer(target, kNew, rank, "", true);
    write_shard(shard_writer, rank, manifest);
    shard_writer.commit();
  }
  write_files(writer, {"one", "three"}, manifest);
  writer.commit(manifest);
}

void run(Role role, const fs::path& target) {
  switch (role) {
    case Role::kWriter:
      save(target, kNew, {"one", "three"});
      return;
    case Role::kRank1:
      save_rank(target, kNew, 1);
      return;
    case Role::kRank2:
      save_rank(target, kNew, 2);
      return;
    case Role::kLateRank1:
      save_rank(target, kOld, 1);
      return;
    case Role::kRepairer:
      save(target, kRepair, {"one", "five"});
      return;
    case Role::kAllRanks:
      save_of_all(target);
      return;
    case Role::kReader:
      see(target);
      return;
    case Role::kRemover:
      remove_checkpoint(target);
      return;
  }
}

/// In memory if possible, because each save syncs to disk ten times.
class TestFolder {
 public:
  explicit TestFolder(Start start) : start_(start) {
    if (start == Start::kUsersFolder) {
      fs::create_directory(target());
    }
    if (start == Start::kOldCheckpoint) {
      save_rank(target(), kOld, 3);
      save(target(), kOld);
    }
    if (start == Start::kNewCheckpoint) {
      save_rank(target(), kNew, 1);
      save(target(), kNew, {"one", "three"});
    }
    if (has_folder()) {
      folder_->write("state/notes", "mine");
    }
  }

  fs::path target() const { return folder_->path() / "state"; }
  bool has_folder() const { return start_ != Start::kNothing; }
  std::unique_ptr<SteppedProcess> start(Role role) const {
    return std::make_unique<SteppedProcess>(
        [role, path = target()] { run(role, path); });
  }
  /// The moment that a reader sees; 0 if there is none.
  std::int64_t look() const {
    try {
      const auto seen = see(target());
      return seen ? seen->moment : 0;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "a reader failed: " << error.what();
      return -1;
    }
  }
  /// The checkpoint is the old one or the new one, complete.
  void expect_whole(bool may_be_repaired = false) const {
    const auto moment = look();
    if (moment == kRepair) {
      EXPECT_TRUE(may_be_repaired);
    } else if (start_ == Start::kOldCheckpoint) {
      EXPECT_TRUE(moment == kOld || moment == kNew) << moment;
    } else if (start_ == Start::kNewCheckpoint) {
      EXPECT_EQ(moment, kNew);
    } else {
      EXPECT_TRUE(moment == 0 || moment == kNew) << moment;
    }
  }
  bool has_begun(int rank) const {
    const auto start =
        ".state.at-" + std::to_string(kNew) + ".rank_" + std::to_string(rank);
    const auto names = names_in(folder_->path());
    return std::any_of(names.begin(), names.end(), [&](const auto& name) {
      return name.starts_with(start);
    });
  }
  /// The new checkpoint contains the part of a rank, or is known to lack it.
  void expect_part_or_mark(int rank) const {
    if (look() != kNew || CheckpointReader(target()).rank_shard(rank)) {
      return;
    }
    EXPECT_THROW(CheckpointReader(target()).check_shards(), DataError);
  }
  /// Saves once more: nothing that the roles did interferes or remains.
  void expect_next_save() const {
    try {
      save_rank(target(), kNext, 1);
      save(target(), kNext, {"one", "four"});
      const auto seen = see(target());
      EXPECT_EQ(seen->moment, kNext);
      EXPECT_THAT(seen->ranks, ElementsAre(1));
    } catch (const std::exception& error) {
      ADD_FAILURE() << "the next save failed: " << error.what();
    }
    expect_only(kNext, {"one", "four"}, {1});
  }
  void expect_only(
      std::int64_t moment,
      std::vector<std::string> names,
      const std::vector<int>& ranks) const {
    names.push_back("checkpoint.json");
    for (const int rank : ranks) {
      names.push_back(rank_shard_name(rank, moment) + ".json");
      names.push_back(rank_shard_name(rank, moment) + ".data");
    }
    if (fs::exists(target() / "notes")) {
      names.push_back("notes");
    }
    EXPECT_THAT(
        names_in(target()), ::testing::UnorderedElementsAreArray(names));
    EXPECT_THAT(names_in(folder_->path()), ElementsAre("state"));
  }

 private:
  static std::unique_ptr<TempDir> make_folder() {
    constexpr const char* kMemory = "/dev/shm";
    const char* chosen = std::getenv("TMPDIR");
    if (chosen || access(kMemory, W_OK | X_OK) != 0) {
      return std::make_unique<TempDir>();
    }
    setenv("TMPDIR", kMemory, 1);
    auto folder = std::make_unique<TempDir>();
    unsetenv("TMPDIR");
    return folder;
  }

  Start start_;
  std::unique_ptr<TempDir> folder_ = make_folder();
};

int num_steps(Start start, Role role, std::optional<Role> after = {}) {
  const TestFolder folder(start);
  if (after) {
    folder.start(*after)->finish();
  }
  const auto process = folder.start(role);
  int count = 0;
  while (process->step()) {
    ++count;
  }
  return count + 1; // it also stops before the first call
}

struct Pair {
  Start start;
  Role first;
  Role second;
};

std::vector<Pair> all_pairs() {
  std::vector<Pair> pairs;
  for (const auto start :
       {Start::kNothing, Start::kUsersFolder, Start::kOldCheckpoint}) {
    for (const auto role : {Role::kRank1, Role::kReader}) {
      pairs.push_back({start, Role::kWriter, role});
      pairs.push_back({start, role, Role::kWriter});
    }
    pairs.push_back({start, Role::kRank1, Role::kRank2});
    pairs.push_back({start, Role::kAllRanks, Role::kReader});
  }
  for (const auto role :
       {Role::kRank1, Role::kReader, Role::kRemover, Role::kWriter}) {
    pairs.push_back({Start::kNewCheckpoint, Role::kRank2, role});
    pairs.push_back({Start::kNewCheckpoint, role, Role::kRank2});
  }
  pairs.push_back({Start::kNewCheckpoint, Role::kRank1, Role::kWriter});
  pairs.push_back({Start::kNewCheckpoint, Role::kWriter, Role::kRank1});
  pairs.push_back({Start::kNewCheckpoint, Role::kAllRanks, Role::kReader});
  pairs.push_back({Start::kOldCheckpoint, Role::kLateRank1, Role::kWriter});
  pairs.push_back({Start::kOldCheckpoint, Role::kWriter, Role::kLateRank1});
  pairs.push_back({Start::kOldCheckpoint, Role::kLateRank1, Role::kReader});
  pairs.push_back({Start::kNewCheckpoint, Role::kRemover, Role::kReader});
  return pairs;
}

/// The ranks whose parts are in the final checkpoint.
std::vector<int> ranks_of(const Pair& pair) {
  const auto has = [&](Role role) {
    return pair.first == role || pair.second == role;
  };
  std::vector<int> ranks;
  if (has(Role::kRank1) || has(Role::kAllRanks) ||
      pair.start == Start::kNewCheckpoint) {
    ranks.push_back(1);
  }
  if (has(Role::kRank2) || has(Role::kAllRanks)) {
    ranks.push_back(2);
  }
  return ranks;
}

/// Whether a role may find no checkpoint, or one that is being removed.
bool may_fail(Role role, Role other) {
  return role == Role::kReader && other == Role::kRemover;
}

bool saves(Role role) {
  return role == Role::kWriter || role == Role::kAllRanks;
}

/// Both have ended normally.
void expect_end(const TestFolder& folder, const Pair& pair) {
  if (pair.first == Role::kRemover || pair.second == Role::kRemover) {
    return;
  }
  folder.expect_whole();
  const bool is_late =
      pair.first == Role::kLateRank1 || pair.second == Role::kLateRank1;
  const auto seen = see(folder.target());
  if (seen && seen->moment == kNew) {
    EXPECT_EQ(seen->ranks, ranks_of(pair));
    if (!is_late) {
      folder.expect_only(kNew, {"one", "three"}, ranks_of(pair));
    }
  }
  const bool is_saved = saves(pair.first) || saves(pair.second);
  EXPECT_EQ(
      seen && seen->moment == kNew,
      is_saved || pair.start == Start::kNewCheckpoint);
}

/// The first role makes `num_first` steps while the second one is paused after
/// `num_second`. Then the first is killed, or waits until the second has ended.
void run_pair(const Pair& pair, int num_first, int num_second, bool kills) {
  const ::testing::ScopedTrace trace(
      __FILE__,
      __LINE__,
      std::string(kills ? "kill " : "delay ") + name_of(pair.first) +
          " at call " + std::to_string(num_first) + ", with " +
          name_of(pair.second) + " at call " + std::to_string(num_second) +
          ", start " + std::to_string(static_cast<int>(pair.start)));
  const TestFolder folder(pair.start);
  const bool removes =
      pair.first == Role::kRemover || pair.second == Role::kRemover;
  const auto second = folder.start(pair.second);
  second->step(num_second);
  const auto first = folder.start(pair.first);
  first->step(num_first);
  if (!removes) {
    folder.expect_whole();
  }
  // Whether the killed rank has left a sign of it.
  const bool had_begun = pair.first == Role::kRank1 && folder.has_begun(1);
  if (kills) {
    first->kill();
  }
  second->finish();
  if (!removes) {
    folder.expect_whole();
  }
  first->finish();
  if (!may_fail(pair.second, pair.first)) {
    EXPECT_EQ(second->error(), "");
  }
  if (!may_fail(pair.first, pair.second)) {
    EXPECT_EQ(first->error(), "");
  }
  if (!kills) {
    expect_end(folder, pair);
  } else if (had_begun && !removes) {
    folder.expect_part_or_mark(1);
  }
  folder.expect_next_save();
}

/// Try one of this many cases.
int stride(int in_short_run) {
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  constexpr int kSlowForks = 10; // they have much more memory to copy
  in_short_run *= kSlowForks;
#endif
#endif
  return is_long_run() ? std::max(4, in_short_run / 100) : in_short_run;
}

/// Cases for all calls of both roles of all pairs.
void run_grid(bool kills) {
  std::mt19937 random(1);
  for (const auto& pair : all_pairs()) {
    // A rank that finds the checkpoint has more to do, for example.
    const int num_first = std::max(
        num_steps(pair.start, pair.first),
        num_steps(pair.start, pair.first, pair.second));
    const int num_second = std::max(
        num_steps(pair.start, pair.second),
        num_steps(pair.start, pair.second, pair.first));
    // In the long tier each call of the first process has a case.
    const int step =
        is_long_run() ? std::min(stride(400), num_second) : stride(400);
    std::uniform_int_distribution begin(0, step - 1);
    for (int first = 0; first < num_first; ++first) {
      for (int second = begin(random); second < num_second; second += step) {
        run_pair(pair, first, second, kills);
        if (::testing::Test::HasFailure()) {
          return;
        }
      }
    }
  }
}

class SaveSteps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_step_processes()) {
      GTEST_SKIP() << "needs ptrace, which this machine does not permit";
    }
  }
};

TEST_F(SaveSteps, KeepsPreviousOrNewCheckpointWhenKilled) {
  run_grid(true);
}

TEST_F(SaveSteps, LosesNoPartIfProcessesAreDelayed) {
  run_grid(false);
}

/// The writer looks for ranks, then one begins and finishes, then the writer
/// takes its part in.
TEST_F(SaveSteps, LeavesNoMarkOfARankThatBeginsAndFinishesMeanwhile) {
  const Pair pair{Start::kNewCheckpoint, Role::kRank2, Role::kWriter};
  constexpr int kCallsAroundIt = 12;
  for (int num_calls = 0; num_calls < kCallsAroundIt; ++num_calls) {
    const TestFolder folder(pair.start);
    const auto step_until = [&](SteppedProcess& process, const char* name) {
      while (!fs::exists(folder.target().parent_path() / name) &&
             process.step(1) == 1) {
      }
    };
    const auto writer = folder.start(pair.second);
    step_until(*writer, "state/.staged-2/three");
    writer->step(num_calls);
    const auto rank = folder.start(pair.first);
    step_until(*rank, ".state.at-2.rank_2.ready.tmp");
    writer->finish();
    rank->finish();
    EXPECT_EQ(writer->error() + rank->error(), "");
    expect_end(folder, pair);
  }
}

/// A save is killed, then the next one, which finds what the first has left.
void kill_two_saves(Start start, int at_first, int at_second) {
  const ::testing::ScopedTrace trace(
      __FILE__,
      __LINE__,
      "killed at call " + std::to_string(at_first) + ", then at call " +
          std::to_string(at_second));
  const TestFolder folder(start);
  const auto first = folder.start(Role::kWriter);
  first->step(at_first);
  first->kill();
  const auto second = folder.start(Role::kRepairer);
  second->step(at_second);
  second->kill();
  EXPECT_EQ(second->error(), "");
  folder.expect_whole(true);
  folder.expect_next_save();
}

TEST_F(SaveSteps, KeepsACheckpointWhenTwoSavesAreKilled) {
  std::mt19937 random(2);
  const int step = stride(100);
  std::uniform_int_distribution begin(0, step - 1);
  for (const auto start : {Start::kNothing, Start::kOldCheckpoint}) {
    const int num_first = num_steps(start, Role::kWriter);
    // It makes more calls if it finds leftovers.
    const int num_second = 2 * num_steps(start, Role::kRepairer);
    for (int first = 0; first < num_first; ++first) {
      for (int second = begin(random); second < num_second; second += step) {
        kill_two_saves(start, first, second);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST_F(SaveSteps, KeepsACheckpointWhenTwoRunsSaveToOneFolder) {
  const int step = is_long_run() ? 1 : 37;
  for (const auto start : {Start::kNothing, Start::kOldCheckpoint}) {
    for (const auto role : {Role::kWriter, Role::kRepairer}) {
      for (int at = 0; at < num_steps(start, Role::kWriter); at += step) {
        SCOPED_TRACE("delayed at call " + std::to_string(at));
        const TestFolder folder(start);
        const auto first = folder.start(Role::kWriter);
        first->step(at);
        const auto second = folder.start(role);
        second->finish();
        folder.expect_whole(true);
        first->finish();
        for (const auto* process : {first.get(), second.get()}) {
          if (!process->error().empty()) {
            EXPECT_THAT(
                process->error(),
                ::testing::HasSubstr("another process is saving to"));
          }
        }
        folder.expect_whole(true);
        folder.expect_next_save();
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST_F(SaveSteps, WorksInRandomOrders) {
  const int num_runs = 40'000 / stride(400);
  for (int i = 0; i < num_runs; ++i) {
    SCOPED_TRACE("run " + std::to_string(i));
    std::mt19937 random(i);
    const auto draw = [&](int below) {
      return std::uniform_int_distribution(0, below - 1)(random);
    };
    const TestFolder folder(static_cast<Start>(draw(3)));
    const std::vector<Role> roles = {
        Role::kWriter,
        Role::kRank1,
        Role::kRank2,
        Role::kReader,
        Role::kLateRank1};
    std::vector<std::unique_ptr<SteppedProcess>> processes;
    for (const auto role : roles) {
      processes.push_back(folder.start(role));
    }
    // In half of the cases no process is killed.
    const int victim = draw(2 * static_cast<int>(roles.size()));
    const int end_of_victim = draw(60);
    for (int num_bursts = 0;; ++num_bursts) {
      std::vector<int> living;
      for (int who = 0; who < static_cast<int>(processes.size()); ++who) {
        if (!processes[who]->has_ended()) {
          living.push_back(who);
        }
      }
      if (living.empty()) {
        break;
      }
      const int who = living[draw(static_cast<int>(living.size()))];
      if (who == victim && num_bursts >= end_of_victim) {
        processes[who]->kill();
      } else {
        processes[who]->step(1 + draw(12));
      }
      if (draw(10) == 0) {
        folder.expect_whole();
      }
    }
    for (size_t who = 0; who < processes.size(); ++who) {
      EXPECT_EQ(processes[who]->error(), "") << name_of(roles[who]);
    }
    folder.expect_whole();
    if (victim != 0) {
      const auto seen = see(folder.target());
      ASSERT_TRUE(seen);
      EXPECT_EQ(seen->moment, kNew);
      for (const int rank : {1, 2}) {
        if (victim != rank) {
          EXPECT_THAT(seen->ranks, ::testing::Contains(rank));
        }
      }
    }
    folder.expect_next_save();
    ASSERT_FALSE(HasFailure());
  }
}

} // namespace
} // namespace accelerate::testing
