// SPDX-License-Identifier: Apache-2.0
// Checkpoints on disk: stop anywhere, resume in other processes. The rest is
// compared bit for bit with an uninterrupted run.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "accelerate/safetensors.h"
#include "run/training.h"
#include "support/long_run.h"
#include "support/rank_bodies.h"
#include "support/temp_dir.h"
#include "training/run/training_run.h"

namespace accelerate::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

constexpr const char* kFolder = "CHECKPOINT_TEST_FOLDER";
constexpr const char* kStop = "CHECKPOINT_TEST_STOP";
constexpr int64_t kEnd = 36;

/// Everything that must be equal: the last losses, weights and moments.
std::string told(Training& training, size_t num_losses) {
  std::vector<double> losses(
      training.losses.end() - static_cast<std::ptrdiff_t>(num_losses),
      training.losses.end());
  std::vector<at::Tensor> all = {torch::tensor(losses, torch::kDouble)};
  for (const auto& [name, value] : training.accelerator.state().state_dict()) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    if (tensor != nullptr && !name.starts_with("accumulation")) {
      all.push_back(tensor->cpu().to(torch::kDouble).flatten());
    }
  }
  return to_text(torch::cat(all));
}

std::string train_all(const AcceleratorOptions& options) {
  torch::manual_seed(1);
  Training training(options, false, 0.3);
  // Dropout differs between ranks.
  torch::manual_seed(2 + training.accelerator.process_index());
  training.run(kEnd);
  return told(training, 5);
}
std::string train_and_save(const AcceleratorOptions& options) {
  torch::manual_seed(1);
  Training training(options, false, 0.3);
  // Dropout differs between ranks.
  torch::manual_seed(2 + training.accelerator.process_index());
  training.run_and_save(std::stoll(getenv(kStop)), getenv(kFolder));
  return "saved";
}
/// The run continues while the checkpoint is written, and ends immediately.
std::string train_and_save_beside(const AcceleratorOptions& options) {
  torch::manual_seed(1);
  Training training(options, false, 0.3);
  torch::manual_seed(2 + training.accelerator.process_index());
  const auto stop = std::stoll(getenv(kStop));
  training.run_and_save(stop, getenv(kFolder), {.asynchronous = true});
  training.run(stop + 4);
  return "saved";
}
std::string load_and_train(const AcceleratorOptions& options) {
  torch::manual_seed(99); // whatever the program does before it loads
  Training training(options, false, 0.3);
  training.accelerator.load_state(getenv(kFolder));
  training.run(kEnd);
  return told(training, 5);
}
/// The last rank is asked to stop during an accumulation; the launcher restarts
/// all of them.
std::string train_preempted(AcceleratorOptions options) {
  options.checkpoints.folder = getenv(kFolder);
  torch::manual_seed(1);
  Training training(options, false, 0.3);
  auto& accelerator = training.accelerator;
  torch::manual_seed(2 + accelerator.process_index());
  const bool is_first = !accelerator.latest_checkpoint();
  if (!is_first) {
    accelerator.load_state("latest");
  }
  training.after_micro_batch = [&] {
    if (is_first && training.counter->seen == 7 &&
        accelerator.is_last_process()) {
      raise(SIGUSR1);
    }
    if (accelerator.should_stop()) {
      accelerator.save_and_leave();
    }
  };
  accelerator.should_stop(); // from here on the signal ends no process
  training.run(kEnd);
  return told(training, 5);
}
const RankBodyRegistration kPreempted("checkpoint_preempted", train_preempted);
const RankBodyRegistration kTrainAll("checkpoint_all", train_all);
const RankBodyRegistration kTrainAndSave("checkpoint_save", train_and_save);
const RankBodyRegistration kTrainAndSaveBeside(
    "checkpoint_save_beside",
    train_and_save_beside);
const RankBodyRegistration kLoadAndTrain("checkpoint_load", load_and_train);

class CheckpointOfARun : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(
    Ranks,
    CheckpointOfARun,
    ::testing::ValuesIn(
        is_long_run() ? std::vector<int>{1, 2, 4} : std::vector<int>{1, 2}));

void expect_to_go_on(
    int num_ranks,
    const std::string& save,
    std::vector<int64_t> stops) {
  if (is_long_run()) {
    stops.clear();
    for (int64_t stop = 1; stop <= kEnd - 5; ++stop) {
      stops.push_back(stop);
    }
  }
  const auto expected =
      run_body(RankKind::kProcesses, num_ranks, "checkpoint_all");
  for (const int64_t stop : stops) {
    const TempDir folder;
    const auto checkpoint = folder.path() / "state";
    setenv(kFolder, checkpoint.c_str(), 1);
    setenv(kStop, std::to_string(stop).c_str(), 1);
    run_body(RankKind::kProcesses, num_ranks, save);
    EXPECT_EQ(
        run_body(RankKind::kProcesses, num_ranks, "checkpoint_load"), expected)
        << "stopped after " << stop;
  }
}

TEST_P(CheckpointOfARun, ResumesBitForBitInNewProcesses) {
  // 22 micro-batches per epoch on one rank, 11 on two; three per update.
  expect_to_go_on(GetParam(), "checkpoint_save", {1, 5, 11, 22, 30});
}

TEST(CheckpointOfThreeRanks, KeepsTheBucketsThatDecideTheOrderOfSums) {
  expect_to_go_on(3, "checkpoint_save", {10});
}

TEST_P(CheckpointOfARun, ResumesBitForBitFromAnAsynchronousSave) {
  expect_to_go_on(GetParam(), "checkpoint_save_beside", {5, 22});
}

TEST_P(CheckpointOfARun, ResumesBitForBitAfterAStopRequest) {
  const TempDir folder;
  setenv(kFolder, folder.path().c_str(), 1);
  const auto expected =
      run_body(RankKind::kProcesses, GetParam(), "checkpoint_all");
  EXPECT_EQ(
      run_body(RankKind::kProcesses, GetParam(), "checkpoint_preempted"),
      expected);
  const auto checkpoints = folder.path() / "checkpoints";
  EXPECT_TRUE(fs::exists(checkpoints / "checkpoint_0" / "checkpoint.json"));
  EXPECT_FALSE(fs::exists(checkpoints / "checkpoint_1"));
}

TEST(CheckpointOnAGpu, ResumesBitForBitWithAScalerAndTheDevicesGenerator) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU";
  }
  // A scale that overflows at first, so that steps are skipped.
  const AcceleratorOptions options = {
      .mixed_precision = Precision::kFp16,
      .scaler = {.init_scale = 1e12, .growth_interval = 3}};
  for (const bool asynchronous : {false, true}) {
    const TempDir folder;
    torch::manual_seed(1);
    Training whole(options, false, 0.3);
    whole.after_micro_batch = [&] {
      if (whole.counter->seen == 13) {
        whole.accelerator.save_state(
            folder.path() / "state", {.asynchronous = asynchronous});
      }
    };
    whole.run(kEnd);
    whole.accelerator.wait_for_save();
    torch::manual_seed(99);
    Training again(options, false, 0.3);
    again.accelerator.load_state(folder.path() / "state");
    again.run(kEnd);
    EXPECT_EQ(told(again, 5), told(whole, 5)) << asynchronous;
  }
}

/// A training on one rank after a few steps.
struct Begun : Training {
  explicit Begun(
      CheckpointOptions checkpoints = {},
      std::optional<ProcessGroup> group = {})
      : Training(
            options(std::move(checkpoints), std::move(group)),
            false,
            0.0) {
    run(4);
  }
  static AcceleratorOptions options(
      CheckpointOptions checkpoints,
      std::optional<ProcessGroup> group) {
    AcceleratorOptions options = {.cpu = true};
    options.checkpoints = std::move(checkpoints);
    options.process_group = std::move(group);
    return options;
  }
  void step() { run(counter->seen + 1); }
};

TEST(Checkpoint, StoresTheModelUnderItsOwnNames) {
  const TempDir folder;
  Begun training;
  const auto checkpoint = folder.path() / "state";
  EXPECT_EQ(training.accelerator.save_state(checkpoint), checkpoint);
  const safetensors::File file(checkpoint / "model.safetensors");
  std::vector<std::string> names;
  for (const auto& tensor : file.tensors()) {
    names.push_back(tensor.name);
  }
  std::vector<std::string> expected;
  for (const auto& item : training.model->named_parameters()) {
    expected.push_back(item.key());
  }
  for (const auto& item : training.model->named_buffers()) {
    expected.push_back(item.key());
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(expected));
  const auto& weight = file.tensor("first.weight");
  EXPECT_EQ(
      std::memcmp(
          weight.data.data(),
          training.model->first->weight.const_data_ptr(),
          weight.data.size()),
      0);
  EXPECT_TRUE(fs::exists(checkpoint / "optimizer.safetensors"));
  EXPECT_TRUE(fs::exists(checkpoint / "rank_0-at-4.json"));
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(5, 3));
    head = register_parameter("head", embedding->weight);
    bias = register_parameter("bias", torch::ones(5));
  }
  torch::nn::Embedding embedding{nullptr};
  Tensor head;
  Tensor bias;
};
TORCH_MODULE(Tied);

TEST(SavedModel, HasTiedWeightsOnceAndTheirOtherNameInTheMetadata) {
  const TempDir folder;
  Accelerator accelerator({.cpu = true});
  Tied model;
  const auto net = accelerator.prepare(model);
  accelerator.save_model(net, folder.path() / "whole");
  const safetensors::File file(folder.path() / "whole" / "model.safetensors");
  std::vector<std::string> names;
  for (const auto& tensor : file.tensors()) {
    names.push_back(tensor.name);
  }
  EXPECT_THAT(names, UnorderedElementsAre("head", "bias"));
  EXPECT_THAT(
      file.metadata(),
      UnorderedElementsAre(
          ::testing::Pair("format", "pt"),
          ::testing::Pair("embedding.weight", "head")));
  accelerator.save_model(net, folder.path() / "cut", {.max_shard_bytes = 40});
  EXPECT_EQ(
      safetensors::Checkpoint(folder.path() / "cut").tensors().size(), 2u);
  // A state with the other name is also accepted.
  accelerator.save_state(folder.path() / "state");
  const auto saved = model->embedding->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    model->embedding->weight.zero_();
  }
  StateDict other;
  other.set("embedding.weight", saved);
  other.set("bias", model->bias.detach());
  std::set<std::string> others;
  for (const auto& [name, object] : accelerator.state().objects()) {
    if (name != "model") {
      others.insert(name);
    }
  }
  accelerator.state().load_states({{"model", other}}, others);
  EXPECT_TRUE(torch::equal(model->head, saved));
  {
    const torch::NoGradGuard no_grad;
    model->embedding->weight.zero_();
  }
  accelerator.load_state(folder.path() / "state");
  EXPECT_TRUE(torch::equal(model->head, saved));
}

TEST(Checkpoint, IsNumberedRotatedAndFoundAgain) {
  const TempDir folder;
  const CheckpointOptions options = {
      .folder = folder.path() / "run", .total_limit = 2};
  Begun training(options);
  EXPECT_FALSE(training.accelerator.latest_checkpoint());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(
        training.accelerator.save_state(),
        options.folder / "checkpoints" / ("checkpoint_" + std::to_string(i)));
    training.step();
  }
  std::vector<std::string> left;
  for (const auto& entry :
       fs::directory_iterator(options.folder / "checkpoints")) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, UnorderedElementsAre("checkpoint_2", "checkpoint_3"));
  EXPECT_EQ(
      training.accelerator.latest_checkpoint(),
      options.folder / "checkpoints" / "checkpoint_3");
  Begun again(options);
  again.accelerator.load_state("latest");
  EXPECT_EQ(again.counter->seen, 7);
  EXPECT_THAT(
      again.accelerator.save_state().filename().string(), "checkpoint_4");
}

TEST(Checkpoint, SaysInOneLineWhatIsMissing) {
  const TempDir folder;
  Begun training;
  EXPECT_THAT(
      [&] { training.accelerator.save_state(); },
      ThrowsMessage<UsageError>(HasSubstr(".checkpoints = {.folder =")));
  EXPECT_THAT(
      [&] { training.accelerator.load_state(folder.path() / "none"); },
      ThrowsMessage<SystemError>(
          "[load_state] No checkpoint at '" +
          (folder.path() / "none").string() +
          "'. Pass the folder of a saved checkpoint"));
  training.accelerator.save_state(folder.path() / "saved");
  EXPECT_THAT(
      [&] { training.accelerator.load_state(folder.path() / "none"); },
      ThrowsMessage<SystemError>(
          "[load_state] No checkpoint at '" +
          (folder.path() / "none").string() + "'. Existing: saved"));
  Begun with({.folder = folder.path(), .total_limit = 0});
  EXPECT_THAT(
      [&] { with.accelerator.save_state(); },
      ThrowsMessage<ConfigError>(HasSubstr("total_limit is 0")));
  EXPECT_THAT(
      [&] { with.accelerator.load_state(); },
      ThrowsMessage<SystemError>(HasSubstr("No complete checkpoint")));
}

TEST(Checkpoint, HoldsGradientsThatNoStepHasUsedYet) {
  // A loop that counts by itself: two backwards per step.
  const TempDir folder;
  const auto backward = [](Begun& training) {
    auto batch = data().get(3);
    training.accelerator.backward(
        training.net(torch::stack({batch[0], -batch[0]})).sum());
  };
  Begun training;
  training.run(6); // an update
  backward(training);
  training.accelerator.save_state(folder.path() / "state");
  backward(training);
  Begun again;
  again.accelerator.load_state(folder.path() / "state");
  backward(again);
  EXPECT_TRUE(torch::equal(
      again.model->first->weight.grad(), training.model->first->weight.grad()));
}

TEST(Checkpoint, NamesATensorThatTakesNoValues) {
  struct Expanded : torch::nn::Module {
    Expanded() { register_buffer("spread", torch::ones({1}).expand({4})); }
  };
  const TempDir folder;
  Accelerator accelerator({.cpu = true});
  const auto net = accelerator.prepare(std::make_shared<Expanded>());
  accelerator.save_state(folder.path() / "state");
  EXPECT_THAT(
      [&] { accelerator.load_state(folder.path() / "state"); },
      ThrowsMessage<UsageError>(HasSubstr("'spread' is not writable")));
}

TEST(Checkpoint, ThatIsDamagedChangesNothing) {
  const TempDir folder;
  const auto checkpoint = folder.path() / "state";
  Begun saved;
  saved.accelerator.save_state(checkpoint);
  for (const char* name :
       {"model.safetensors",
        "optimizer.safetensors",
        "checkpoint.json",
        "rank_0-at-4.json",
        "rank_0-at-4.safetensors"}) {
    const auto path = checkpoint / name;
    const auto good = read_file(path);
    auto bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 4);
    std::ofstream(path, std::ios::binary) << bad;
    Begun training;
    training.step();
    const auto before = training.model->first->weight.clone();
    EXPECT_THROW(training.accelerator.load_state(checkpoint), DataError)
        << name;
    EXPECT_EQ(training.counter->seen, 5);
    EXPECT_TRUE(torch::equal(before, training.model->first->weight));
    std::ofstream(path, std::ios::binary) << good;
  }
  Begun training;
  training.accelerator.load_state(checkpoint);
}

TEST(Checkpoint, ThatCannotBeWrittenLeavesTheRunAndTheOldOne) {
  const TempDir folder;
  const auto disk = folder.path() / "disk";
  fs::create_directory(disk);
  const auto mounted = run_process(
      {"mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk.string()});
  if (mounted.exit_code != 0) {
    GTEST_SKIP() << "no right to mount a small tmpfs: " << mounted.err;
  }
  Begun training;
  training.accelerator.save_state(disk / "state");
  const std::string ballast(40 << 10, 'x');
  std::ofstream(disk / "ballast") << ballast;
  training.step();
  EXPECT_THAT(
      [&] { training.accelerator.save_state(disk / "state"); },
      ThrowsMessage<SystemError>(HasSubstr("No space left")));
  EXPECT_THROW(training.accelerator.save_state(disk / "new"), SystemError);
  EXPECT_FALSE(fs::exists(disk / "new"));
  training.step();
  Begun again;
  again.accelerator.load_state(disk / "state");
  EXPECT_EQ(again.counter->seen, 4);
  run_process({"umount", disk.string()});
}

TEST(AsynchronousSave, ThatFailsIsReportedOnceByTheNextCall) {
  const TempDir folder;
  const auto target = folder.path() / "run" / "state";
  Begun training;
  training.accelerator.save_state(target, {.asynchronous = true});
  training.accelerator.wait_for_save();
  training.step();
  // The folder of the new one can be created, but its files cannot be written.
  signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit nothing = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &nothing), 0);
  training.accelerator.save_state(target, {.asynchronous = true});
  training.step();
  EXPECT_THAT(
      [&] { training.accelerator.latest_checkpoint(); },
      ThrowsMessage<SystemError>(HasSubstr("File too large")));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, SIG_DFL);
  training.accelerator.wait_for_save();
  Begun again;
  again.accelerator.load_state(target);
  EXPECT_EQ(again.counter->seen, 4);
  training.accelerator.save_state(target, {.asynchronous = true});
  again.accelerator.load_state(folder.path() / "run" / "state");
}

TEST(AsynchronousSave, ComesAfterTheOneBeforeAndRotates) {
  const TempDir folder;
  Begun training({.folder = folder.path(), .total_limit = 2});
  for (int i = 0; i < 5; ++i) {
    training.accelerator.save_state({}, {.asynchronous = true});
    training.step();
  }
  const auto latest = training.accelerator.latest_checkpoint();
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->filename(), "checkpoint_4");
  Begun again;
  again.accelerator.load_state(*latest);
  EXPECT_EQ(again.counter->seen, 8);
  std::vector<std::string> left;
  for (const auto& entry :
       fs::directory_iterator(folder.path() / "checkpoints")) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, UnorderedElementsAre("checkpoint_3", "checkpoint_4"));
}

TEST(AsynchronousSaveDeathTest, IsFinishedIfTheProgramCallsExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TempDir folder;
  const auto target = folder.path() / "state";
  setenv(kFolder, target.c_str(), /*overwrite=*/0);
  EXPECT_EXIT(
      {
        Begun training;
        training.accelerator.save_state(
            getenv(kFolder), {.asynchronous = true});
        std::exit(3);
      },
      ::testing::ExitedWithCode(3),
      "");
  const fs::path written = getenv(kFolder);
  unsetenv(kFolder);
  Begun training;
  training.accelerator.load_state(written);
  fs::remove_all(written);
}

TEST(Checkpoint, FailsOnAllRanksIfItFailsOnOne) {
  const TempDir folder;
  folder.write("file", "");
  std::vector<std::string> problems(2);
  run_ranks(2, [&](ProcessGroup group) {
    Training training(group, false);
    training.run(2);
    try {
      training.accelerator.save_state(folder.path() / "file" / "state");
    } catch (const SystemError& error) {
      problems[static_cast<size_t>(group.rank())] = error.what();
    }
    training.run(3); // the ranks are still in step
  });
  EXPECT_THAT(problems[0], HasSubstr("Cannot create the folder"));
  EXPECT_THAT(problems[1], HasSubstr("Cannot create the folder"));
}

/// Saves 1, then replaces it with 2, which the main rank writes late, and loads
/// immediately: returns what each rank gets.
std::vector<int64_t> saved_late_and_loaded(bool asynchronous) {
  const TempDir folder;
  const auto checkpoint = folder.path() / "state";
  std::vector<int64_t> loaded(2);
  run_ranks(2, [&](ProcessGroup group) {
    TrainingRun run({.cpu = true, .process_group = group}, system_env);
    const auto counter = std::make_shared<Counter>();
    run.state()->add("counter", counter);
    counter->seen = 1;
    run.checkpoints().save_state(checkpoint, {.is_of_all = true});
    counter->seen = 2;
    const auto be_late = [&](const fs::path&) {
      if (group.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
      return RunCheckpoints::SaveWith::Extra();
    };
    run.checkpoints().save_state(
        checkpoint, {.extra = be_late, .asynchronous = asynchronous});
    run.checkpoints().wait_for_saves_of_all();
    counter->seen = 3;
    run.checkpoints().load_state(checkpoint);
    loaded[static_cast<size_t>(group.rank())] = counter->seen;
  });
  return loaded;
}

TEST(Checkpoint, ThatRanksSaveEachForItselfIsCompleteBeforeOneLoadsIt) {
  EXPECT_THAT(saved_late_and_loaded(false), ElementsAre(2, 2));
  EXPECT_THAT(saved_late_and_loaded(true), ElementsAre(2, 2));
}

TEST(Checkpoint, OfASaveThatFailsOnOneRankIsLoadedByNone) {
  const TempDir folder;
  std::vector<std::string> problems(2);
  run_ranks(2, [&](ProcessGroup group) {
    TrainingRun run({.cpu = true, .process_group = group}, system_env);
    const auto counter = std::make_shared<Counter>();
    run.state()->add("counter", counter);
    const auto block = [&](const fs::path& stage) {
      if (group.rank() == 0) {
        fs::create_directory(stage / "checkpoint.json");
      }
      return RunCheckpoints::SaveWith::Extra();
    };
    run.checkpoints().save_state(
        folder.path() / "state", {.extra = block, .asynchronous = true});
    try {
      run.checkpoints().wait_for_saves_of_all();
    } catch (const SystemError& error) {
      problems[static_cast<size_t>(group.rank())] = error.what();
    }
  });
  EXPECT_THAT(problems[0], HasSubstr("checkpoint.json"));
  EXPECT_THAT(problems[1], HasSubstr("[load_state] rank 0 failed: "));
}

/// The error of each of two ranks on loading, and whether its state has
/// changed.
struct Outcome {
  std::string problem;
  int64_t seen = 0;
};
std::vector<Outcome> load_on_two_ranks(
    const fs::path& root,
    const fs::path& checkpoint) {
  std::vector<Outcome> outcomes(2);
  run_ranks(2, [&](ProcessGroup group) {
    auto& outcome = outcomes[static_cast<size_t>(group.rank())];
    Begun training({.folder = root}, group);
    training.counter->seen = -1;
    try {
      training.accelerator.load_state(checkpoint);
    } catch (const DataError& error) {
      outcome.problem = error.what();
    }
    outcome.seen = training.counter->seen;
    training.accelerator.wait_for_everyone(); // the ranks are still in step
  });
  return outcomes;
}

TEST(Checkpoint, ThatIsDamagedForOneRankIsLoadedByNone) {
  const TempDir folder;
  const auto parent = folder.path() / "checkpoints";
  run_ranks(2, [&](ProcessGroup group) {
    Begun training({.folder = folder.path()}, group);
    training.accelerator.save_state();
    training.step();
    training.accelerator.save_state();
  });
  const auto newest = parent / "checkpoint_1";
  const auto part = newest / "rank_1-at-5.safetensors"; // read by rank 1
  const auto good = read_file(part);
  auto bad = good;
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 4);
  std::ofstream(part, std::ios::binary) << bad;
  for (const auto& [problem, seen] : load_on_two_ranks(folder.path(), newest)) {
    EXPECT_THAT(problem, ::testing::StartsWith("[load_state] rank 1 failed: "));
    EXPECT_THAT(problem, HasSubstr("rank_1-at-5.safetensors' is damaged"));
    EXPECT_EQ(seen, -1);
  }
  std::ofstream(part, std::ios::binary) << good;
  fs::remove(newest / "rank_1-at-5.json");
  for (const auto& [problem, seen] : load_on_two_ranks(folder.path(), newest)) {
    EXPECT_THAT(problem, HasSubstr("the data of rank 1 is missing"));
    EXPECT_EQ(seen, -1);
  }
  for (const auto& [problem, seen] :
       load_on_two_ranks(folder.path(), "latest")) {
    EXPECT_EQ(problem, "");
    EXPECT_EQ(seen, 4);
  }
}

TEST(Checkpoint, RanksThatLoadDifferentThingsAllFail) {
  const TempDir folder;
  std::vector<std::string> problems(2);
  run_ranks(2, [&](ProcessGroup group) {
    Begun training({}, group);
    training.accelerator.save_state(folder.path() / "state");
    try {
      if (group.rank() == 0) {
        training.accelerator.load_state(folder.path() / "state");
      } else {
        training.accelerator.load_state("latest");
      }
    } catch (const MismatchError& error) {
      problems[static_cast<size_t>(group.rank())] = error.what();
    }
    EXPECT_EQ(training.counter->seen, 4);
  });
  for (const auto& problem : problems) {
    EXPECT_THAT(problem, HasSubstr("load_state(\"latest\")"));
  }
}

TEST(Checkpoint, IsLoadedByAnotherNumberOfRanks) {
  const TempDir folder;
  const auto checkpoint = folder.path() / "state";
  run_ranks(2, [&](ProcessGroup group) {
    Training training(group, false);
    training.run_and_save(6, checkpoint);
  });
  Training alone(ProcessGroup(), false);
  alone.accelerator.load_state(checkpoint);
  EXPECT_EQ(alone.counter->seen, 6);
  alone.run(10);
}

/// Batches of two of ten samples, in order.
auto ten() {
  return DataLoader(TensorDataset({torch::arange(10)}), {.batch_size = 2});
}

/// A run with a model, and a loader that is prepared.
struct WithLoader {
  explicit WithLoader(DataLoader<TensorDataset> data = ten())
      : accelerator({.cpu = true}),
        model(1, 1),
        net(accelerator.prepare(model.ptr())),
        loader(accelerator.prepare(data)) {}
  void backward() { accelerator.backward(net(torch::ones({1, 1})).sum()); }

  Accelerator accelerator;
  torch::nn::Linear model;
  PreparedModel<torch::nn::LinearImpl> net;
  DataLoader<TensorDataset> loader;
};

/// The samples that the next loop returns after the checkpoint was loaded.
std::vector<int64_t> rest_of(
    const fs::path& checkpoint,
    DataLoader<TensorDataset> data = ten()) {
  WithLoader run(std::move(data));
  run.accelerator.load_state(checkpoint);
  std::vector<int64_t> samples;
  for (auto& batch : run.loader) {
    for (int64_t i = 0; i < batch[0].numel(); ++i) {
      samples.push_back(batch[0][i].item<int64_t>());
    }
  }
  return samples;
}

TEST(LoaderOfACheckpoint, CountsBatchInHandOnceBackwardWasCalled) {
  const TempDir folder;
  for (const int num_workers : {0, 2}) {
    const auto data = [&] {
      return DataLoader(
          TensorDataset({torch::arange(10)}),
          {.batch_size = 2, .num_workers = num_workers});
    };
    WithLoader run(data());
    int number = 0;
    for ([[maybe_unused]] auto& batch : run.loader) {
      if (++number == 3) {
        run.accelerator.save_state(folder.path() / "top");
      }
      run.backward();
      if (number == 3) {
        run.accelerator.save_state(folder.path() / "bottom");
        // If the loader itself is queried, batches that were returned count.
        EXPECT_EQ(run.loader.state_dict().get<int64_t>("num_done"), 6);
      }
    }
    EXPECT_THAT(
        rest_of(folder.path() / "top", data()), ElementsAre(4, 5, 6, 7, 8, 9));
    EXPECT_THAT(
        rest_of(folder.path() / "bottom", data()), ElementsAre(6, 7, 8, 9));
  }
}

TEST(LoaderOfACheckpoint, StartsNextEpochIfItsLoopWasLeft) {
  const TempDir folder;
  const auto all = ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
  WithLoader run;
  for ([[maybe_unused]] auto& batch : run.loader) {
    run.backward();
    break;
  }
  run.accelerator.save_state(folder.path() / "break");
  EXPECT_THAT(rest_of(folder.path() / "break"), all);
  // One batch of a destroyed iterator, and of a living one.
  { const auto first = run.loader.begin(); }
  run.accelerator.save_state(folder.path() / "gone");
  EXPECT_THAT(rest_of(folder.path() / "gone"), all);
  auto open = run.loader.begin();
  run.backward();
  run.accelerator.save_state(folder.path() / "open");
  EXPECT_THAT(
      rest_of(folder.path() / "open"), ElementsAre(2, 3, 4, 5, 6, 7, 8, 9));
  // An evaluation: no backward, and the loop completes.
  WithLoader evaluation;
  for ([[maybe_unused]] auto& batch : evaluation.loader) {
  }
  evaluation.accelerator.save_state(folder.path() / "end");
  EXPECT_THAT(rest_of(folder.path() / "end"), all);
}

TEST(LoaderOfACheckpoint, IsNamedWithItsPosition) {
  const TempDir folder;
  WithLoader run;
  for ([[maybe_unused]] auto& batch : run.loader) {
    run.backward();
    run.accelerator.save_state(folder.path() / "state");
    break;
  }
  WithLoader again;
  ::testing::internal::CaptureStderr();
  again.accelerator.load_state(folder.path() / "state");
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "[load_state] loader resumes epoch 0 after 2 samples\n");
  // Empty if no loader was in the middle of an epoch.
  WithLoader fresh;
  fresh.accelerator.save_state(folder.path() / "fresh");
  ::testing::internal::CaptureStderr();
  fresh.accelerator.load_state(folder.path() / "fresh");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Checkpoint, OfAnEarlierReleaseLoads) {
  Training training({.cpu = true}, false, 0.0);
  training.accelerator.load_state(
      fs::path(TEST_REFERENCE_DIR) / "checkpoint" / "from_d5ba3cd" / "cpp");
  EXPECT_EQ(training.counter->seen, 7);
  EXPECT_EQ(training.loader.state_dict().get<int64_t>("num_done"), 14);
  EXPECT_THAT(training.scheduler.last_lr(), ElementsAre(0.025));
  training.run(9);
}

/// A model, its prepared optimizer, and a schedule that halves the rate.
struct Scheduled {
  explicit Scheduled(bool has_scheduler = true)
      : accelerator({.cpu = true}),
        model(1, 1),
        sgd(model->parameters(), {.lr = 1}),
        net(accelerator.prepare(model.ptr())),
        opt(accelerator.prepare(sgd)) {
    if (has_scheduler) {
      scheduler.emplace(opt, ExponentialLR{.gamma = 0.5});
    }
  }
  void step() {
    accelerator.backward(net(torch::ones({1, 1})).sum());
    opt.step();
    scheduler->step();
    opt.zero_grad();
  }
  std::string load(const fs::path& checkpoint) {
    ::testing::internal::CaptureStderr();
    accelerator.load_state(checkpoint);
    return ::testing::internal::GetCapturedStderr();
  }

  Accelerator accelerator;
  torch::nn::Linear model;
  optim::SGD sgd;
  PreparedModel<torch::nn::LinearImpl> net;
  PreparedOptimizer opt;
  std::optional<Scheduler> scheduler;
};

TEST(SchedulerOfACheckpoint, IsSavedWithoutPrepare) {
  const TempDir folder;
  Scheduled run;
  run.step();
  run.step();
  run.accelerator.save_state(folder.path() / "with");
  run.step();
  Scheduled again;
  EXPECT_EQ(again.load(folder.path() / "with"), "");
  EXPECT_THAT(again.scheduler->last_lr(), ElementsAre(0.25));
  again.step();
  EXPECT_EQ(again.scheduler->last_lr(), run.scheduler->last_lr());
  // The same state after preparing it.
  Scheduled prepared;
  prepared.accelerator.prepare(*prepared.scheduler);
  EXPECT_EQ(prepared.load(folder.path() / "with"), "");
  EXPECT_THAT(prepared.scheduler->last_lr(), ElementsAre(0.25));
}

TEST(SchedulerOfACheckpoint, IsSavedOnce) {
  Scheduled run;
  Scheduler other(run.opt, StepLR{.step_size = 2});
  run.accelerator.prepare(other);
  std::vector<std::string> names;
  for (const auto& [name, object] : run.accelerator.state().objects()) {
    if (name.starts_with("scheduler")) {
      names.push_back(name);
    }
  }
  EXPECT_THAT(names, ElementsAre("scheduler", "scheduler_1"));
  // Prepared ones keep their names.
  EXPECT_EQ(run.accelerator.state().name_of(*other.stateful()), "scheduler");
  run.scheduler.reset();
  EXPECT_FALSE(run.accelerator.state().is_optional("scheduler_1"));
}

TEST(SchedulerOfACheckpoint, MayBeMissingWithAWarning) {
  const TempDir folder;
  Scheduled without(false);
  without.accelerator.save_state(folder.path() / "without");
  Scheduled run;
  EXPECT_THAT(
      run.load(folder.path() / "without"),
      HasSubstr("has no state for 'scheduler', which was not passed"));
  run.step();
  run.accelerator.save_state(folder.path() / "with");
  EXPECT_THAT(
      without.load(folder.path() / "with"),
      HasSubstr("contains the state of 'scheduler', which this run"));
  // A prepared one must exist.
  Scheduled prepared;
  prepared.accelerator.prepare(*prepared.scheduler);
  EXPECT_THAT(
      [&] { prepared.accelerator.load_state(folder.path() / "without"); },
      ThrowsMessage<UsageError>(HasSubstr("does not contain 'scheduler'")));
}

TEST(SchedulerOfACheckpoint, OfTheOriginalOptimizerIsSaved) {
  for (const bool is_first : {true, false}) {
    const TempDir folder;
    std::vector<double> rates[2];
    for (const bool resumes : {false, true}) {
      Accelerator accelerator({.cpu = true});
      torch::nn::Linear model(1, 1);
      optim::SGD sgd(model->parameters(), {.lr = 1});
      std::optional<Scheduler> scheduler;
      if (is_first) {
        scheduler.emplace(sgd, StepLR{.step_size = 2, .gamma = 0.5});
      }
      auto [net, opt] = accelerator.prepare(model, sgd);
      if (!is_first) {
        scheduler.emplace(sgd, StepLR{.step_size = 2, .gamma = 0.5});
      }
      const auto step = [&, &net = net, &opt = opt] {
        accelerator.backward(net(torch::ones({1, 1})).sum());
        opt.step();
        scheduler->step();
        opt.zero_grad();
      };
      if (resumes) {
        accelerator.load_state(folder.path() / "state");
      } else {
        step();
        step();
        step();
        accelerator.save_state(folder.path() / "state");
      }
      for (int i = 0; i < 3; ++i) {
        step();
        rates[resumes].push_back(scheduler->last_lr().front());
      }
    }
    EXPECT_THAT(rates[0], ElementsAre(0.25, 0.25, 0.125));
    EXPECT_EQ(rates[1], rates[0]) << is_first;
  }
}

// Also of the original optimizer.
TEST(SchedulerOfACheckpoint, OfTorchOnTheOriginalOptimizerIsWarnedAbout) {
  const TempDir folder;
  Scheduled run(false);
  torch::optim::StepLR scheduler(run.sgd, 1, 0.5);
  scheduler.step();
  scheduler.step();
  ::testing::internal::CaptureStderr();
  run.accelerator.save_state(folder.path() / "state");
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("torch::optim schedulers have no state"));
  // A rate that was loaded is none that a scheduler has set.
  Scheduled again(false);
  again.load(folder.path() / "state");
  ::testing::internal::CaptureStderr();
  again.accelerator.save_state(folder.path() / "state");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(SchedulerOfACheckpoint, OfTorchCausesAWarning) {
  const TempDir folder;
  Scheduled run(false);
  torch::optim::StepLR scheduler(run.opt, 1, 0.5);
  const auto saved = [&] {
    ::testing::internal::CaptureStderr();
    run.accelerator.save_state(folder.path() / "state");
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(saved(), "");
  scheduler.step();
  scheduler.step(); // the first leaves the rate unchanged
  EXPECT_THAT(saved(), HasSubstr("torch::optim schedulers have no state"));
  EXPECT_EQ(saved(), "");
}

/// Accumulation of three micro-batches of one linear model, whose gradient is
/// known.
struct Windowed {
  Windowed(ProcessGroup group, bool weighted)
      : accelerator(
            {.cpu = true,
             .accumulation = {.num_steps = 3},
             .process_group = group}),
        model(torch::nn::LinearOptions(2, 1).bias(false)),
        weighted(weighted) {
    const torch::NoGradGuard no_grad;
    model->weight.fill_(0.5);
    net = accelerator.prepare(model);
  }
  /// The number of a micro-batch determines its input and its number of
  /// samples.
  static Tensor input(int number) {
    return torch::full({1, 2}, 2.0 * number).index_put_({0, 0}, 1.0 + number);
  }
  static double weight(int number) { return 1.0 + 2 * number; }
  void run(int number) {
    const auto window = accelerator.accumulate(*net);
    BackwardOptions options;
    if (weighted) {
      options.weight = weight(number);
    }
    accelerator.backward((*net)(input(number)).sum(), options);
  }

  Accelerator accelerator;
  torch::nn::Linear model;
  std::optional<PreparedModel<torch::nn::LinearImpl>> net;
  bool weighted;
};

class UnfinishedAccumulation : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Weighted, UnfinishedAccumulation, ::testing::Bool());

TEST_P(UnfinishedAccumulation, IsEndedByAnotherNumberOfRanks) {
  const bool weighted = GetParam();
  const auto in_all = [&](const std::vector<std::vector<int>>& rounds) {
    // The gradient of a linear model's output is its input.
    Tensor sum = torch::zeros({1, 2});
    double total = 0;
    for (const auto& round : rounds) {
      for (const int number : round) {
        const double share = weighted ? Windowed::weight(number)
                                      : 1.0 / static_cast<double>(round.size());
        sum += Windowed::input(number) * share;
        total += share;
      }
    }
    return sum / total;
  };
  const TempDir folder;
  run_ranks(2, [&](ProcessGroup group) {
    Windowed two(group, weighted);
    two.run(group.rank());
    two.run(2 + group.rank());
    two.accelerator.save_state(folder.path() / "two");
  });
  Windowed one(ProcessGroup(), weighted);
  one.accelerator.load_state(folder.path() / "two");
  one.run(4);
  // Three roundings of fp32.
  EXPECT_TRUE(torch::allclose(
      one.model->weight.grad(), in_all({{0, 1}, {2, 3}, {4}}), 1e-6))
      << one.model->weight.grad();

  Windowed alone(ProcessGroup(), weighted);
  alone.run(0);
  alone.run(1);
  alone.accelerator.save_state(folder.path() / "one");
  run_ranks(2, [&](ProcessGroup group) {
    Windowed two(group, weighted);
    two.accelerator.load_state(folder.path() / "one");
    two.run(2 + group.rank());
    EXPECT_TRUE(torch::allclose(
        two.model->weight.grad(), in_all({{0}, {1}, {2, 3}}), 1e-6))
        << two.model->weight.grad();
  });
}

} // namespace
} // namespace accelerate::testing
