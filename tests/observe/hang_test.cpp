// SPDX-License-Identifier: Apache-2.0
// Ranks that stand still: what is said, by real ranks that are threads,
// processes, and processes on two hosts. A collective that nobody comes to is
// an exception in the end.
#include <gmock/gmock.h>
#include <signal.h>
#include <torch/torch.h>

#include <thread>

#include "accelerate/data_loader.h"
#include "accelerate/datasets.h"
#include "accelerate/error.h"
#include "support/cluster.h"
#include "support/program.h"
#include "support/rank_bodies.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

constexpr const char* kSeconds = "0.5";
constexpr auto kThreshold = 500ms;
/// Long enough for the slowest message: of a store that does not answer.
constexpr auto kTimeout = 8s;

/// Found by name in the stack of the rank that stands still.
[[gnu::noinline]] void spin_for_long() {
  const auto end = std::chrono::steady_clock::now() + kTimeout + 4s;
  while (std::chrono::steady_clock::now() < end) {
  }
}

struct Case {
  const char* name;
  /// What the last of the ranks does in the place of the others' all_reduce.
  std::function<void(const ProcessGroup&)> last;
  std::vector<std::string> said;
  /// Whether the all_reduce ends well.
  bool ends_well = false;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"EndlessLoop",
       [](const ProcessGroup&) { spin_for_long(); },
       {"in code of the user's; collective [0-9]+ was its last; it has not "
        "moved for",
        "spin_for_long"}},
      {"SkippedCollective",
       [](const ProcessGroup& group) {
         // It should have been the second one.
         group.all_gather(torch::ones({3}));
       },
       {"elsewhere, waiting in all_gather Float.3."}},
      {"AnotherCollective",
       [](const ProcessGroup& group) { group.barrier(); },
       {"elsewhere, waiting in barrier"}},
      {"Slow",
       [](const ProcessGroup& group) {
         std::this_thread::sleep_for(4 * kThreshold);
         group.all_reduce(torch::ones({4}), ReduceOp::kSum);
       },
       {"rank 1: in code of the user's", "no longer waits, after"},
       true},
      {"StuckLoader",
       [](const ProcessGroup&) {
         struct Stuck {
           at::Tensor get(int64_t /*index*/) const {
             spin_for_long();
             return torch::ones({1});
           }
           size_t size() const { return 4; }
         };
         DataLoader loader(Stuck(), {.batch_size = 1});
         for (auto& batch : loader) {
           static_cast<void>(batch);
         }
       },
       {"rank 1: waiting for data"}},
  };
  return all;
}

void play(const Case& one, const ProcessGroup& group) {
  group.barrier();
  if (group.rank() == group.world_size() - 1) {
    one.last(group);
  } else {
    group.all_reduce(torch::ones({4}), ReduceOp::kSum);
    // Somebody looks whether it goes on.
    std::this_thread::sleep_for(kThreshold);
  }
}

ProcessGroup connect() {
  return ProcessGroup::connect(
      detect_environment(), {.backend = Backend::kGloo, .timeout = kTimeout});
}

/// The cases as bodies of processes.
const bool kRegistered = [] {
  for (const auto& one : cases()) {
    RankBodyRegistration(one.name, [&one](const AcceleratorOptions&) {
      play(one, connect());
      return std::string();
    });
  }
  const auto stop = [](int stopped) {
    return [stopped](const AcceleratorOptions&) {
      const auto group = connect();
      group.barrier();
      // As a run that has begun: who is who is known.
      std::this_thread::sleep_for(2s);
      if (group.rank() == stopped) {
        raise(SIGSTOP);
      }
      group.all_reduce(torch::ones({4}), ReduceOp::kSum);
      return std::string();
    };
  };
  RankBodyRegistration("StopLast", stop(1));
  RankBodyRegistration("StopFirst", stop(0));
  return true;
}();

std::map<std::string, std::string> variables_for(
    const std::string& body,
    const TempDir& folder) {
  return {
      {"ACCELERATE_TEST_BODY", body},
      {"ACCELERATE_TEST_FOLDER", folder.path().string()},
      {"ACCELERATE_HANG_SECONDS", kSeconds},
      {"OMP_NUM_THREADS", "1"}};
}

std::vector<std::string> launch_command() {
  return {
      kProgram,
      "launch",
      "--cpu",
      "--num_processes",
      "2",
      std::filesystem::read_symlink("/proc/self/exe")};
}

ProcessResult launch(const std::string& body) {
  const TempDir folder;
  return run_process(launch_command(), variables_for(body, folder), kLimit);
}

void check_message(const Case& one, const std::string& err) {
  EXPECT_THAT(err, HasSubstr("[hang] all_reduce Float[4], collective "));
  EXPECT_THAT(err, HasSubstr("rank 0: waiting in all_reduce Float[4]"));
  for (const auto& said : one.said) {
    EXPECT_THAT(err, ContainsRegex(said));
  }
  // Once, whoever of those that wait says it; the launcher repeats the last
  // lines of a rank that failed.
  const auto said = err.substr(0, err.find("[launch] first failure"));
  EXPECT_EQ(said.find("not all ranks came"), said.rfind("not all ranks came"))
      << err;
}

class HangCases : public ::testing::TestWithParam<size_t> {
 protected:
  static const Case& one() { return cases()[GetParam()]; }
};

TEST_P(HangCases, IsExplainedByThreads) {
  ::testing::internal::CaptureStderr();
  std::string thrown;
  try {
    run_ranks(
        2,
        [](const ProcessGroup& group) { play(one(), group); },
        {.backend = Backend::kGloo,
         .timeout = 4s,
         .hang_message_after = kThreshold});
  } catch (const Error& error) {
    thrown = error.what();
  }
  check_message(one(), ::testing::internal::GetCapturedStderr());
  EXPECT_EQ(thrown.empty(), one().ends_well) << thrown;
}

TEST_P(HangCases, IsExplainedByProcesses) {
  const auto result = launch(one().name);
  check_message(one(), result.err);
  EXPECT_EQ(result.exit_code == 0, one().ends_well) << result.err;
}

INSTANTIATE_TEST_SUITE_P(
    All,
    HangCases,
    ::testing::Range<size_t>(0, cases().size()),
    [](const auto& info) { return std::string(cases()[info.param].name); });

TEST(Hang, NamesARankThatWasStopped) {
  const auto err = launch("StopLast").err;
  EXPECT_THAT(
      err,
      AllOf(
          HasSubstr("[hang] all_reduce Float[4], collective "),
          ContainsRegex("rank 1: process [0-9]+ on .* does not answer: it is "
                        "stopped; kill -CONT [0-9]+ lets it go on")));
}

TEST(Hang, NamesTheHolderOfTheStoreThatWasStopped) {
  const auto err = launch("StopFirst").err;
  EXPECT_THAT(
      err,
      AllOf(
          HasSubstr("[hang] all_reduce Float[4], collective "),
          ContainsRegex("rank 0: process [0-9]+ on .* does not answer: it is "
                        "stopped"),
          HasSubstr("it holds the store")));
}

TEST(Hang, IsSilentWhereItIsSwitchedOff) {
  const TempDir folder;
  auto variables = variables_for("Slow", folder);
  variables["ACCELERATE_HANG_SECONDS"] = "0";
  const auto result = run_process(launch_command(), variables, kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("[hang]")));
}

TEST(Doctor, AsksARunningJobWhereItsRanksAre) {
  const TempDir folder;
  auto variables = variables_for("EndlessLoop", folder);
  variables["ACCELERATE_HANG_SECONDS"] = "0";
  Subprocess job(launch_command(), variables);
  const auto ask = [&] {
    return run_process(
        {kProgram, "doctor", "--job", std::to_string(job.pid())}, {}, kLimit);
  };
  std::string said;
  ASSERT_TRUE(eventually(
      [&] {
        said = ask().out;
        return said.find("waiting in all_reduce") != std::string::npos;
      },
      kLimit))
      << said << job.err();
  EXPECT_THAT(
      said,
      AllOf(
          ContainsRegex("rank 0 of 2 .process [0-9]+.: waiting in all_reduce "
                        "Float.4., collective"),
          ContainsRegex("rank 1 of 2 .process [0-9]+.: in code of the user's"),
          HasSubstr("spin_for_long")));
}

TEST(Doctor, SaysThatAProcessIsNoJob) {
  Subprocess other({"sleep", "60"});
  const auto result = run_process(
      {kProgram, "doctor", "--job", std::to_string(other.pid())}, {}, kLimit);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("run no rank that can be asked"));
}

// Messages between hosts, of which one rank is stopped.
TEST(Hang, IsExplainedByProcessesOnTwoHosts) {
  const std::string reason = Cluster::why_not();
  if (!reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const Cluster cluster(2);
  const auto on_both = [&](const std::string& body) {
    const TempDir folder;
    auto variables = variables_for(body, folder);
    variables["ACCELERATE_JOB_TOKEN"] = "of this test";
    std::vector<std::unique_ptr<Subprocess>> hosts;
    for (int host = 0; host < 2; ++host) {
      auto command = launch_command();
      const std::vector<std::string> flags = {
          "--num_machines",
          "2",
          "--machine_rank",
          std::to_string(host),
          "--main_process_ip",
          cluster.address(0)};
      command.insert(command.begin() + 2, flags.begin(), flags.end());
      hosts.push_back(cluster.start(host, command, variables));
    }
    std::string err;
    for (auto& host : hosts) {
      err += host->wait(kLimit).err;
    }
    return err;
  };
  check_message(cases()[0], on_both(cases()[0].name));
  EXPECT_THAT(
      on_both("StopLast"),
      ContainsRegex("rank 1: process [0-9]+ on node1 does not answer"));
}

} // namespace
} // namespace accelerate::testing
