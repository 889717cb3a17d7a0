// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/checkpoint_folder.h"
#include "core/checkpoint/numbered.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "accelerate/error.h"
#include "checkpoint/saving.h"
#include "core/base/mapped_file.h"
#include "core/checkpoint/job_name.h"
#include "support/long_run.h"
#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

/// The moment of the checkpoint, which all of its files must share.
int64_t moment_of(const fs::path& folder) {
  const CheckpointReader reader(folder);
  reader.verify();
  const auto& manifest = reader.manifest();
  for (const auto& [name, record] : manifest.files) {
    EXPECT_EQ(
        read_file(reader.find(name, record)),
        name + std::to_string(manifest.moment));
  }
  return manifest.moment;
}

template <class Error>
void expect_error(const std::function<void()>& run, const std::string& text) {
  try {
    run();
    ADD_FAILURE() << "nothing was thrown, expected: " << text;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

/// The name of a job on this machine whose process is not running.
std::string dead_job() {
  const auto own = new_job_name();
  return own.substr(0, own.find('-')) + "-999999999-1-1";
}

TEST(CheckpointFolder, AppearsOnlyWhenComplete) {
  const TempDir folder;
  const auto target = folder.path() / "deep" / "state";
  {
    CheckpointWriter writer(target, 3);
    write_text(writer.folder() / "one", "one3");
    EXPECT_FALSE(fs::exists(target));
  }
  EXPECT_THAT(names_in(target.parent_path()), ElementsAre());
  save(target / "", 4);
  EXPECT_EQ(moment_of(target), 4);
  EXPECT_THAT(names_in(target.parent_path()), ElementsAre("state"));
  EXPECT_THAT(
      names_in(target), UnorderedElementsAre("checkpoint.json", "one", "two"));
}

TEST(CheckpointFolder, ReplacesPreviousCheckpointAndKeepsUserFiles) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  fs::create_directories(target / "unet");
  folder.write("state/notes.txt", "mine");
  save(target, 1);
  save(target, 2, {"one", "three"});
  EXPECT_EQ(moment_of(target), 2);
  EXPECT_EQ(read_file(target / "notes.txt"), "mine");
  EXPECT_THAT(
      names_in(target),
      UnorderedElementsAre(
          "checkpoint.json", "notes.txt", "unet", "one", "three"));
}

TEST(CheckpointFolder, KeepsPreviousCheckpointWhenSaveIsAborted) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  save(target, 1);
  {
    CheckpointWriter writer(target, 2);
    write_text(writer.folder() / "one", "half");
    EXPECT_EQ(moment_of(target), 1);
  }
  EXPECT_EQ(moment_of(target), 1);
  EXPECT_EQ(names_in(target).size(), 3u);
}

TEST(CheckpointFolder, AcceptsRankFilesBeforeAndAfterRankZero) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  // Twice: into a new folder and into an existing one.
  for (const int64_t moment : {5, 6}) {
    save_rank(target, moment, 1);
    save(target, moment);
    save_rank(target, moment, 2);
    const CheckpointReader reader(target);
    EXPECT_FALSE(reader.rank_shard(0));
    for (const int rank : {1, 2}) {
      const auto shard = reader.rank_shard(rank);
      ASSERT_TRUE(shard) << rank;
      EXPECT_EQ(shard->state["generator"]["rank"], rank);
    }
    EXPECT_EQ(names_in(target).size(), 7u);
    EXPECT_THAT(names_in(folder.path()), ElementsAre("state"));
  }
  save_rank(target, 5, 3);
  EXPECT_FALSE(CheckpointReader(target).rank_shard(3)) << "of another moment";
}

TEST(CheckpointFolder, JoinsFoldersThatSeveralRanksWrite) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  for (const int rank : {1, 2}) {
    RankShardWriter shard_writer(target, 1, rank);
    fs::create_directory(shard_writer.folder() / "unet");
    write_text(shard_writer.folder() / "unet" / std::to_string(rank), "x");
    shard_writer.commit();
  }
  save(target, 1);
  EXPECT_THAT(names_in(target / "unet"), UnorderedElementsAre("1", "2"));
}

TEST(CheckpointFolder, RankFilesDoNotReplaceThoseOfMainProcess) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  const auto save_same = [&](int rank) {
    RankShardWriter shard_writer(target, 1, rank);
    for (const char* name : {"one", "checkpoint.json", "extra"}) {
      write_text(shard_writer.folder() / name, "a rank's");
    }
    shard_writer.commit();
  };
  save_same(1);
  save(target, 1);
  save_same(2);
  EXPECT_EQ(moment_of(target), 1);
  EXPECT_EQ(read_file(target / "extra"), "a rank's");
}

TEST(CheckpointFolder, AcceptsRankFilesWrittenConcurrently) {
  for (const bool is_new : {true, false}) {
    const TempDir folder;
    const auto target = folder.path() / "state";
    if (!is_new) {
      save(target, 1);
    }
    for (int64_t moment = 2; moment < 22; ++moment) {
      std::vector<std::thread> ranks;
      for (const int rank : {1, 2}) {
        ranks.emplace_back([&, rank] { save_rank(target, moment, rank); });
      }
      save(target, moment);
      for (auto& rank : ranks) {
        rank.join();
      }
      const CheckpointReader reader(target);
      EXPECT_TRUE(reader.rank_shard(1) && reader.rank_shard(2)) << moment;
      EXPECT_THAT(names_in(folder.path()), ElementsAre("state"));
      EXPECT_EQ(names_in(target).size(), 7u) << moment;
      if (is_new) {
        remove_checkpoint(target);
      }
    }
  }
}

TEST(CheckpointFolder, IsWrittenByOneProcessAtATime) {
  const TempDir folder;
  for (const char* name : {"new", "old"}) {
    const auto target = folder.path() / name;
    if (std::string(name) == "old") {
      save(target, 0);
    }
    for (const int64_t moment : {1, 2}) {
      const CheckpointWriter other(target, 1);
      expect_error<SystemError>(
          [&] { save(target, moment); }, "another process is saving to");
      EXPECT_TRUE(fs::exists(other.folder()));
    }
    save(target, 3);
  }
}

TEST(CheckpointFolder, IsReadConsistentlyWhileItIsReplaced) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  save(target, 0);
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (int64_t moment = 1; !ends; ++moment) {
      save(target, moment);
    }
  });
  for (int i = 0; i < 300; ++i) {
    read_checkpoint(target, [&](const CheckpointReader& reader) {
      const auto& manifest = reader.manifest();
      for (const auto& [name, record] : manifest.files) {
        const MappedFile file(reader.find(name, record), "test", "file");
        reader.check(name, record, file.bytes());
        const auto expected = name + std::to_string(manifest.moment);
        EXPECT_EQ(
            std::string(
                reinterpret_cast<const char*>(file.bytes().data()),
                file.bytes().size()),
            expected);
      }
    });
  }
  ends = true;
  writer.join();
}

TEST(CheckpointFolder, KeepsAnotherRunsFolders) {
  const TempDir folder;
  CheckpointWriter other(folder.path() / "other", 1);
  save(folder.path() / "state", 1);
  EXPECT_TRUE(fs::exists(other.folder()));
}

TEST(CheckpointFolder, KeepsFinishedPartsOfOtherRuns) {
  const TempDir folder;
  const auto other = folder.path() / "other";
  CheckpointWriter writer(other, 1);
  save_rank(other, 1, 1);
  save(folder.path() / "state", 2);
  writer.commit(manifest_of(1));
  EXPECT_TRUE(CheckpointReader(other).rank_shard(1));
}

TEST(CheckpointFolder, RemovesPartsThatKilledRunsLeft) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  save_rank(target, 1, 1);
  save_rank(folder.path() / "other", 2, 1);
  fs::create_directory(
      folder.path() / (".state.at-2-" + dead_job() + ".rank_3.1-1.tmp"));
  fs::create_directory(folder.path() / ".state.at-3.rank_3.1-1.tmp");
  save(target, 2);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("state"));
  EXPECT_THAT(
      names_in(target), UnorderedElementsAre("checkpoint.json", "one", "two"));
}

/// What `CheckpointReader` says that a checkpoint lacks.
std::string missing_shard(const fs::path& target) {
  try {
    CheckpointReader(target).check_shards();
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

TEST(CheckpointFolder, IsIncompleteWithoutPartOfRankThatHadBegun) {
  for (const bool is_late : {false, true}) {
    SCOPED_TRACE(is_late);
    const TempDir folder;
    const auto target = folder.path() / "state";
    const auto begin = [&] {
      return std::make_unique<RankShardWriter>(target, 1, 2);
    };
    auto shard_writer = is_late ? nullptr : begin();
    save(target, 1);
    if (is_late) {
      EXPECT_EQ(missing_shard(target), "") << "main process alone";
      shard_writer = begin();
    }
    EXPECT_THAT(missing_shard(target), HasSubstr("the data of rank 2"));
    shard_writer.reset(); // as if it had failed
    EXPECT_THAT(missing_shard(target), HasSubstr("the data of rank 2"));
    std::vector<std::string> said;
    const auto listen = [&](const std::string& line) { said.push_back(line); };
    EXPECT_THAT(complete_checkpoints(folder.path(), listen), ElementsAre());
    EXPECT_THAT(said, ElementsAre(HasSubstr("the data of rank 2")));
    // A later save removes what the rank has left, but not the mark.
    save(folder.path() / "other", 2);
    EXPECT_THAT(
        names_in(folder.path()), UnorderedElementsAre("state", "other"));
    EXPECT_THAT(missing_shard(target), HasSubstr("the data of rank 2"));
    save_rank(target, 1, 2);
    EXPECT_EQ(missing_shard(target), "");
    EXPECT_EQ(names_in(target).size(), 5u) << "no mark is left";
  }
}

TEST(CheckpointFolder, SaysHowToLoadItWithoutPartOfKilledRank) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  const auto left = folder.path() / ".state.at-1.rank_2.77-1.tmp";
  const auto mark = target / mark_name(2, 1, "");
  fs::create_directory(left);
  save(target, 1);
  const auto problem = missing_shard(target);
  EXPECT_THAT(
      problem,
      HasSubstr(
          ", or delete '" + left.string() + "' and '" + mark.string() +
          "' to load this checkpoint without that data"));
  fs::remove(mark);
  EXPECT_THAT(
      missing_shard(target),
      HasSubstr(", or delete '" + left.string() + "' to"));
  fs::remove(left);
  EXPECT_EQ(missing_shard(target), "");
  // Not while the rank may still finish it.
  const RankShardWriter shard_writer(target, 1, 2);
  EXPECT_THAT(missing_shard(target), HasSubstr("Load another checkpoint"));
  EXPECT_THAT(missing_shard(target), Not(HasSubstr("delete")));
}

TEST(CheckpointFolder, RotationKeepsPreviousCheckpointOfIncompleteOne) {
  const TempDir folder;
  const auto newest = numbered_checkpoint(folder.path(), 2);
  save(numbered_checkpoint(folder.path(), 1), 1);
  const RankShardWriter shard_writer(newest, 2, 1);
  save(newest, 2);
  rotate_checkpoints(folder.path(), 1);
  EXPECT_TRUE(is_checkpoint(numbered_checkpoint(folder.path(), 1)));
}

TEST(CheckpointFolder, NamesNumberedFolderWithoutManifest) {
  const TempDir folder;
  save(numbered_checkpoint(folder.path(), 1), 1);
  save(numbered_checkpoint(folder.path(), 2), 2);
  fs::remove(folder.path() / "checkpoint_2" / "checkpoint.json");
  folder.write("checkpoint_3/random_states_0.pkl", "the original's");
  std::vector<std::string> said;
  const auto found = latest_intact_checkpoint(
      folder.path(), [&](const std::string& line) { said.push_back(line); });
  EXPECT_EQ(found, folder.path() / "checkpoint_1");
  EXPECT_THAT(
      said, ElementsAre(HasSubstr("checkpoint_2': it has no checkpoint")));
}

TEST(CheckpointFolder, JobsDoNotMixTheirParts) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  const auto own = new_job_name();
  const auto save_as = [&](const std::string& job) {
    auto manifest = manifest_of(1);
    manifest.job = job;
    CheckpointWriter writer(target, 1, job);
    write_files(writer, {"one"}, manifest);
    writer.commit(manifest);
  };
  const auto save_rank_as = [&](const std::string& job, int rank) {
    auto manifest = manifest_of(1);
    manifest.job = job;
    RankShardWriter shard_writer(target, 1, rank, job);
    write_shard(shard_writer, rank, manifest);
    shard_writer.commit();
  };
  // One job has finished a part when another one saves to the same folder.
  save_rank_as(own, 1);
  const auto other = new_job_name();
  save_as(other);
  EXPECT_FALSE(CheckpointReader(target).rank_shard(1));
  save_as(own);
  EXPECT_TRUE(CheckpointReader(target).rank_shard(1));
  save_rank_as(other, 2);
  EXPECT_FALSE(CheckpointReader(target).rank_shard(2));
  save_as(dead_job());
  EXPECT_FALSE(CheckpointReader(target).rank_shard(1)) << "of another job";
  EXPECT_THAT(names_in(target), UnorderedElementsAre("checkpoint.json", "one"));
}

TEST(CheckpointFolder, RejectsSecondJobAndNamesTheFirst) {
  const TempDir folder;
  for (const char* name : {"new", "old"}) {
    const auto target = folder.path() / name;
    if (std::string(name) == "old") {
      save(target, 0);
    }
    const CheckpointWriter first(target, 1, new_job_name());
    expect_error<SystemError>(
        [&] { CheckpointWriter second(target, 1, new_job_name()); },
        "the job of process " + std::to_string(getpid()) + " on ");
    EXPECT_TRUE(fs::exists(first.folder()));
  }
}

TEST(CheckpointFolder, RemovesFinishedPartsWhenSaveIsAborted) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  {
    const CheckpointWriter writer(target, 1);
    save_rank(target, 1, 1);
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre());
}

TEST(CheckpointFolder, KeepsFilesOfFolderMadeDuringSave) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  CheckpointWriter writer(target, 1);
  auto manifest = manifest_of(1);
  write_files(writer, {"one", "two"}, manifest);
  fs::create_directory(target);
  folder.write("state/notes.txt", "mine");
  writer.commit(manifest);
  EXPECT_EQ(moment_of(target), 1);
  EXPECT_THAT(
      names_in(target),
      UnorderedElementsAre("checkpoint.json", "one", "two", "notes.txt"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("state"));
}

TEST(CheckpointFolder, IsRejectedIfDamaged) {
  const TempDir folder;
  const auto target = folder.path() / "state";
  expect_error<SystemError>(
      [&] { CheckpointReader reader(target); }, "No checkpoint at");
  fs::create_directory(target);
  expect_error<DataError>(
      [&] { CheckpointReader reader(target); }, "has no checkpoint.json");
  save(target, 1);
  folder.write("state/one", "oneX");
  expect_error<DataError>(
      [&] { moment_of(target); }, "checksum does not match");
  folder.write("state/one", "on");
  expect_error<DataError>(
      [&] { moment_of(target); }, "has 2 bytes instead of 4");
  fs::remove(target / "one");
  expect_error<DataError>([&] { moment_of(target); }, "'one' is missing");
  folder.write("elsewhere", "one1");
  fs::create_symlink(folder.path() / "elsewhere", target / "one");
  expect_error<DataError>([&] { moment_of(target); }, "is not a regular file");
}

TEST(CheckpointFolder, FindsTheNewestCompleteOne) {
  const TempDir folder;
  EXPECT_THAT(complete_checkpoints(folder.path()), ElementsAre());
  for (const int64_t moment : {3, 10, 7, 20}) {
    save(folder.path() / ("step_" + std::to_string(moment)), moment);
  }
  fs::remove(folder.path() / "step_20" / "two");
  fs::create_directory(folder.path() / "step_30");
  const auto found = complete_checkpoints(folder.path());
  EXPECT_THAT(
      found,
      ElementsAre(
          folder.path() / "step_3",
          folder.path() / "step_7",
          folder.path() / "step_10"));
  remove_checkpoint(found[0]);
  EXPECT_EQ(complete_checkpoints(folder.path()).size(), 2u);
}

TEST(NumberedCheckpoints, RotationKeepsUserFiles) {
  const TempDir folder;
  EXPECT_EQ(next_checkpoint_number(folder.path()), 0);
  for (const int64_t number : {1, 2, 3, 4}) {
    save(numbered_checkpoint(folder.path(), number), number);
  }
  fs::remove(folder.path() / "checkpoint_1" / "two");
  folder.write("checkpoint_4/two", "damaged");
  folder.write("checkpoint_0", "a file of the user's");
  fs::create_directories(folder.path() / "checkpoint_5" / "mine");
  save(folder.path() / "checkpoint_002", 2);
  save(folder.path() / "best", 2);
  EXPECT_EQ(next_checkpoint_number(folder.path()), 6);
  rotate_checkpoints(folder.path(), 1);
  EXPECT_THAT(
      names_in(folder.path()),
      UnorderedElementsAre(
          "best",
          "checkpoint_0",
          "checkpoint_002",
          "checkpoint_3",
          "checkpoint_4",
          "checkpoint_5"));
}

TEST(NumberedCheckpoints, HaveNumbersWithoutLeadingZeros) {
  EXPECT_EQ(checkpoint_number("a/checkpoint_7"), 7);
  EXPECT_EQ(checkpoint_number("checkpoint_0"), 0);
  for (const char* name :
       {"checkpoint_007", "checkpoint_", "checkpoint_7b", "my_checkpoint_7"}) {
    EXPECT_EQ(checkpoint_number(name), std::nullopt) << name;
  }
  const TempDir folder;
  for (const char* name : {"checkpoint_10", "checkpoint_2", "checkpoint_007"}) {
    fs::create_directories(folder.path() / name);
  }
  EXPECT_THAT(
      numbered_checkpoints(folder.path()),
      ElementsAre(
          ::testing::Pair(2, folder.path() / "checkpoint_2"),
          ::testing::Pair(10, folder.path() / "checkpoint_10")));
}

TEST(NumberedCheckpoints, MomentsIncludeSavesInProgressButNotOtherJobs) {
  const TempDir folder;
  const auto job = new_job_name();
  const auto other = new_job_name();
  const auto path = [&](int64_t number) {
    return numbered_checkpoint(folder.path(), number);
  };
  for (const int64_t number : {0, 1}) {
    CheckpointWriter writer(path(number), 3 + number, job);
    writer.commit({.moment = 3 + number, .job = job});
  }
  CheckpointWriter(path(2), 9, other).commit({.moment = 9, .job = other});
  const CheckpointWriter current(path(3), 6, job);
  const CheckpointWriter unrelated(path(4), 7, other);
  using Moments = std::map<int64_t, int64_t>;
  EXPECT_EQ(
      moments_of_job(folder.path(), job, 0), (Moments{{0, 3}, {1, 4}, {3, 6}}));
  EXPECT_EQ(moments_of_job(folder.path(), job, 1), (Moments{{1, 4}, {3, 6}}));
  EXPECT_EQ(moments_of_job(folder.path() / "none", job, 0), Moments());
}

TEST(CheckpointFolder, RejectsInvalidLocations) {
  const TempDir folder;
  folder.write("file", "");
  expect_error<SystemError>(
      [&] { save(folder.path() / "file", 1); }, "a file with this name exists");
  expect_error<SystemError>(
      [&] { save(folder.path() / "file" / "below", 1); },
      "[save_state] Cannot create the folder");
}

/// Saves repeatedly, as a run that is going to be killed.
[[noreturn]] void save_for_ever(const fs::path& parent, int64_t moment) {
  const bool is_same = moment % 2 == 0;
  while (true) {
    ++moment;
    save_rank(parent / "same", moment, 1);
    save(is_same ? parent / "same" : parent / std::to_string(moment), moment);
    save_rank(parent / "same", moment, 2);
    const auto all = complete_checkpoints(parent);
    for (size_t i = 0; i + 4 < all.size(); ++i) {
      remove_checkpoint(all[i]);
    }
  }
}

TEST(CheckpointFolder, IsConsistentWheneverTheRunIsKilled) {
  const TempDir folder;
  std::mt19937 random(20);
  save(folder.path() / "same", 0);
  int64_t newest = 0;
  const int num_kills = is_long_run() ? 2000 : 200;
  constexpr int kPatience = 40'000;
  int patience = kPatience; // Microseconds.
  for (int i = 0; i < num_kills; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      save_for_ever(folder.path(), newest);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(
        std::uniform_int_distribution(0, patience)(random)));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    const auto all = complete_checkpoints(folder.path());
    // A rank that was killed during its own save leaves the shared folder
    // incomplete, and this is detected.
    const auto same = folder.path() / "same";
    const bool lacks_shard = fs::exists(same) && !missing_shard(same).empty();
    ASSERT_TRUE(lacks_shard || !all.empty()) << "after kill " << i;
    if (all.empty()) {
      continue;
    }
    const auto last = moment_of(all.back());
    if (!lacks_shard) {
      EXPECT_GE(last, newest);
    }
    // On a busy machine a save takes longer.
    patience =
        last > newest ? kPatience : std::min(patience + 10'000, 10 * kPatience);
    newest = last;
    for (const auto& name : names_in(folder.path())) {
      // Everything with its final name is complete.
      if (!name.starts_with('.') && !(lacks_shard && name == "same")) {
        EXPECT_LE(moment_of(folder.path() / name), newest) << name;
      }
    }
  }
  EXPECT_GT(newest, 10) << "hardly a save was ever finished";
  // A run that ends normally leaves no files of those that did not.
  for (const auto& path : complete_checkpoints(folder.path())) {
    if (path.filename() != "same") {
      remove_checkpoint(path);
    }
  }
  save(folder.path() / "same", newest + 100);
  EXPECT_THAT(
      names_in(folder.path() / "same"),
      UnorderedElementsAre("checkpoint.json", "one", "two"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("same"));
}

} // namespace
} // namespace accelerate::testing
