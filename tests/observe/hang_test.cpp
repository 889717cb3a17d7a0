// SPDX-License-Identifier: Apache-2.0
// Reports of hanging ranks, with real ranks that are threads, processes, and
// processes on two hosts. A collective that is never completed finally throws.
#include <gmock/gmock.h>
#include <signal.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "accelerate/data_loader.h"
#include "accelerate/datasets.h"
#include "accelerate/error.h"
#include "support/cluster.h"
#include "support/long_run.h"
#include "support/program.h"
#include "support/rank_bodies.h"

// User code, whose functions are found by name in stacks: code in the library's
// own namespace does not count as user code.
namespace program {

using namespace accelerate;
using namespace std::chrono_literals;

/// Never reached: a job ends when it has printed what it should.
constexpr auto kLongTimeout = 300s;

/// Waits until the test creates the file `name`.
void wait_for(const std::string& name) {
  const std::filesystem::path folder = std::getenv("ACCELERATE_TEST_FOLDER");
  while (!std::filesystem::exists(folder / name)) {
    std::this_thread::sleep_for(5ms);
  }
}

[[gnu::noinline]] void spin_for_long() {
  const auto end = std::chrono::steady_clock::now() + kLongTimeout;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Keeps making its own steps until the test creates the file `name`.
void step_until(const std::string& name) {
  const std::filesystem::path folder = std::getenv("ACCELERATE_TEST_FOLDER");
  while (!std::filesystem::exists(folder / name)) {
    DataLoader loader(TensorDataset({torch::ones({4})}), {.batch_size = 1});
    for (auto& batch : loader) {
      static_cast<void>(batch);
      std::this_thread::sleep_for(1ms);
    }
  }
}

struct Stuck {
  at::Tensor get(int64_t /*index*/) const {
    spin_for_long();
    return torch::ones({1});
  }
  size_t size() const { return 4; }
};

[[gnu::noinline]] void add_up(const ProcessGroup& group) {
  group.all_reduce(torch::ones({4}), ReduceOp::kSum);
}

void be_slow(const ProcessGroup& group) {
  step_until("go");
  add_up(group);
}

} // namespace program

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;
using program::kLongTimeout;

constexpr const char* kSeconds = "0.5";

struct Case {
  const char* name;
  /// What the last rank does instead of the others' all_reduce.
  std::function<void(const ProcessGroup&)> last;
  /// Regular expressions.
  std::vector<std::string> said;
};

const char* const kSlow =
    "rank 1: .*; slow, not missing: it last made progress";
const std::vector<std::string> kMissing = {
    "rank 1: in user code; collective [0-9]+ was its last; no progress for",
    "spin_for_long"};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"EndlessLoop",
       [](const ProcessGroup&) { program::spin_for_long(); },
       kMissing},
      {"SkippedCollective",
       [](const ProcessGroup& group) {
         // It should have been the second one.
         group.all_gather(torch::ones({3}));
       },
       {"rank 1: elsewhere, waiting in all_gather.Float.3."}},
      {"AnotherCollective",
       [](const ProcessGroup& group) { group.barrier(); },
       {"rank 1: elsewhere, waiting in barrier"}},
      {"StuckLoader",
       [](const ProcessGroup&) {
         DataLoader loader(program::Stuck(), {.batch_size = 1});
         loader.begin();
       },
       {"rank 1: waiting for data", "spin_for_long"}},
      {"SlowThenEndlessLoop",
       [](const ProcessGroup&) {
         program::step_until("stop");
         program::spin_for_long();
       },
       {kSlow}},
      {"Slow", program::be_slow, {kSlow}},
  };
  return all;
}

const std::vector<std::string> kWaiting = {
    "[[]hang[]] Possible hang: rank 0 has waited [0-9.]+ s in "
    "all_reduce[(]Float[[]4[]][)] for rank 1:",
    // The first position is in user code, however libraries wait.
    "rank 0: waiting in all_reduce[(]Float[[]4[]][)], collective [0-9]+, for "
    // If rank 1 prints, the launcher prefixes each line.
    "[0-9.]+ s\n([[]rank 1[]] )?      ([a-z_.]+:[0-9]+ in )?program::add_up"};

void play(const Case& one, const ProcessGroup& group) {
  group.barrier();
  if (group.rank() == group.world_size() - 1) {
    one.last(group);
  } else {
    program::add_up(group);
    program::wait_for("end");
  }
}

ProcessGroupOptions options_with(std::chrono::seconds timeout) {
  return {.backend = Backend::kGloo, .timeout = timeout};
}

ProcessGroup connect(std::chrono::seconds timeout = kLongTimeout) {
  return ProcessGroup::connect(detect_environment(), options_with(timeout));
}

using GroupBody = std::function<void(const ProcessGroup&)>;

/// As a rank of a launch, and as a process whose threads are the ranks.
void register_body(const std::string& name, const GroupBody& body) {
  RankBodyRegistration(name, [body](const AcceleratorOptions&) {
    body(connect());
    return std::string();
  });
  RankBodyRegistration(name + "OfThreads", [body](const AcceleratorOptions&) {
    run_ranks(2, body, options_with(kLongTimeout));
    return std::string();
  });
}

const bool kRegistered = [] {
  for (const auto& one : cases()) {
    register_body(
        one.name, [&one](const ProcessGroup& group) { play(one, group); });
  }
  register_body("WrongShape", [](ProcessGroup group) {
    group.check_collectives();
    group.all_reduce(torch::ones({4 + group.rank()}), ReduceOp::kSum);
  });
  register_body("StopLast", [](const ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 1) {
      raise(SIGSTOP);
    }
    group.all_reduce(torch::ones({4}), ReduceOp::kSum);
  });
  register_body("StopFirst", [](const ProcessGroup& group) {
    group.barrier();
    // As in a run that has started: the host of the store is known.
    std::this_thread::sleep_for(2s);
    if (group.rank() == 0) {
      raise(SIGSTOP);
    }
    group.all_reduce(torch::ones({4}), ReduceOp::kSum);
  });
  RankBodyRegistration("ShortTimeout", [](const AcceleratorOptions&) {
    const auto group = connect(6s);
    group.barrier();
    if (group.rank() == 1) {
      program::spin_for_long();
    }
    program::add_up(group);
    return std::string();
  });
  return true;
}();

enum class Place { kThreads, kProcesses, kHosts };

/// Two ranks that run a body; ended by the destructor.
class Job {
 public:
  explicit Job(
      const std::string& body,
      Place place = Place::kProcesses,
      const std::string& seconds = kSeconds) {
    std::map<std::string, std::string> variables = {
        {"ACCELERATE_TEST_BODY", body},
        {"ACCELERATE_TEST_FOLDER", folder_.path().string()},
        {"ACCELERATE_HANG_SECONDS", seconds},
        {"OMP_NUM_THREADS", "1"}};
    const std::string own = std::filesystem::read_symlink("/proc/self/exe");
    std::vector<std::string> launch = {
        kProgram, "launch", "--cpu", "--num_processes", "2"};
    switch (place) {
      case Place::kThreads:
        variables["ACCELERATE_TEST_BODY"] += "OfThreads";
        start({own}, variables);
        break;
      case Place::kProcesses:
        launch.push_back(own);
        start(launch, variables);
        break;
      case Place::kHosts:
        cluster_.emplace(2);
        variables["ACCELERATE_JOB_TOKEN"] = "of this test";
        for (int host = 0; host < 2; ++host) {
          auto command = launch;
          for (const auto& part :
               {std::string("--num_machines"),
                std::string("2"),
                std::string("--machine_rank"),
                std::to_string(host),
                std::string("--main_process_ip"),
                cluster_->address(0),
                own}) {
            command.push_back(part);
          }
          start(cluster_->on(host, command), variables);
        }
        break;
    }
  }

  int pid() const { return processes_[0]->pid(); }
  std::string err() const {
    std::string text;
    for (const auto& process : processes_) {
      text += process->err();
    }
    return text;
  }
  /// Waits until everything has been printed.
  void expect(const std::vector<std::string>& expressions) const {
    EXPECT_TRUE(eventually(
        [&] {
          const auto text = err();
          return std::all_of(
              expressions.begin(), expressions.end(), [&](const auto& one) {
                return ::testing::Matches(ContainsRegex(one))(text);
              });
        },
        kLimit))
        << err() << "\nshould say\n"
        << ::testing::PrintToString(expressions);
  }
  /// What the ranks wait for with `wait_for`.
  void allow(const std::string& name) const {
    std::ofstream(folder_.path() / name).put('\n');
  }
  /// The first nonzero exit code.
  int wait() {
    int code = 0;
    for (const auto& process : processes_) {
      const int own = process->wait(kLimit).exit_code;
      code = code != 0 ? code : own;
    }
    return code;
  }

 private:
  void start(
      const std::vector<std::string>& command,
      const std::map<std::string, std::string>& variables) {
    processes_.push_back(std::make_unique<Subprocess>(command, variables));
  }

  TempDir folder_;
  std::optional<Cluster> cluster_;
  std::vector<std::unique_ptr<Subprocess>> processes_;
};

class HangCases : public ::testing::TestWithParam<size_t> {
 protected:
  static const Case& one() { return cases()[GetParam()]; }
  static void check(Place place) {
    Job job(one().name, place);
    job.expect(kWaiting);
    job.expect(one().said);
    if (one().name == std::string("StuckLoader")) {
      // Time for a duplicate message, which must not appear.
      std::this_thread::sleep_for(4s);
      EXPECT_THAT(job.err(), Not(HasSubstr("has not returned a batch")));
    }
    if (one().name == std::string("SlowThenEndlessLoop")) {
      EXPECT_THAT(job.err(), Not(ContainsRegex(kMissing[0])));
      job.allow("stop");
      job.expect(kMissing);
    }
    if (one().name == std::string("Slow")) {
      job.allow("go");
      job.expect({"[[]hang[]] rank 0 stopped waiting after"});
      job.allow("end");
      EXPECT_EQ(job.wait(), 0) << job.err();
    }
  }
};

TEST_P(HangCases, IsExplainedByThreads) {
  check(Place::kThreads);
}

TEST_P(HangCases, IsExplainedByProcesses) {
  check(Place::kProcesses);
}

class HangCasesOnHosts : public HangCases {};

TEST_P(HangCasesOnHosts, AreExplained) {
  if (const auto reason = Cluster::why_not(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  check(Place::kHosts);
}

std::string name_of(const ::testing::TestParamInfo<size_t>& info) {
  return cases()[info.param].name;
}

INSTANTIATE_TEST_SUITE_P(
    All,
    HangCases,
    ::testing::Range<size_t>(0, cases().size()),
    name_of);

// The first and the last: a missing rank, and a slow one.
INSTANTIATE_TEST_SUITE_P(
    All,
    HangCasesOnHosts,
    ::testing::Range<size_t>(
        0,
        cases().size(),
        is_long_run() ? 1 : cases().size() - 1),
    name_of);

// The message of a comparison names it; no rank waits.
TEST(Hang, DoesNotResultFromAShapeMismatch) {
  std::vector<Place> places = {Place::kThreads, Place::kProcesses};
  if (Cluster::why_not().empty()) {
    places.push_back(Place::kHosts);
  }
  for (const auto place : places) {
    Job job("WrongShape", place, "60");
    EXPECT_NE(job.wait(), 0);
    EXPECT_THAT(
        job.err(),
        AllOf(
            ContainsRegex("all_reduce.. with sum was called with shape .5. on "
                          "rank 1 .*but .4. on rank 0"),
            Not(HasSubstr("[hang]"))));
  }
}

const std::vector<std::string> kLastIsStopped = {
    "[[]hang[]] Possible hang: rank . has waited [0-9.]+ s in "
    "all_reduce[(]Float[[]4[]][)] for rank ",
    "rank 1: process [0-9]+ on .* does not answer: it is stopped; continue "
    "it with kill -CONT [0-9]+"};

// It has no time to print anything after connecting.
TEST(Hang, NamesARankThatWasStopped) {
  Job("StopLast").expect(kLastIsStopped);
}

TEST(Hang, NamesARankThatWasStoppedOnAnotherHost) {
  if (const auto reason = Cluster::why_not(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  Job("StopLast", Place::kHosts)
      .expect({"rank 1: process [0-9]+ on node1 does not answer: it has exited "
               "or is stopped, or its machine cannot be reached"});
}

TEST(Hang, NamesAStoppedRankThatHostsTheStore) {
  Job("StopFirst")
      .expect(
          {kLastIsStopped[0],
           "rank 0: process [0-9]+ on .* does not answer: it is stopped",
           "it hosts the store"});
}

TEST(Hang, IsReportedOnceAndEndsWithAnException) {
  Job job("ShortTimeout");
  EXPECT_NE(job.wait(), 0);
  // The launcher repeats the last lines of a rank that failed.
  const auto err = job.err();
  const auto said = err.substr(0, err.find("[launch] Rank "));
  EXPECT_THAT(
      said,
      ContainsRegex("[[]all_reduce[]] collective .* timed out after .*another "
                    "rank did not call it"));
  const auto number_behind = [&](const std::string& text) {
    const auto at = err.find(text);
    return at == std::string::npos ? 0
                                   : std::stoi(err.substr(at + text.size()));
  };
  EXPECT_GT(number_behind("[all_reduce] collective "), 0) << err;
  EXPECT_EQ(
      number_behind("[all_reduce] collective "),
      number_behind("waiting in all_reduce(Float[4]), collective "))
      << err;
  // A rank that arrived late from the previous collective is called slow first.
  const std::string missing = "no progress for";
  EXPECT_THAT(said, HasSubstr(missing));
  EXPECT_EQ(said.find(missing), said.rfind(missing)) << err;
}

TEST(Hang, PrintsNothingIfDisabled) {
  Job job("Slow", Place::kProcesses, "0");
  std::this_thread::sleep_for(1s);
  job.allow("go");
  job.allow("end");
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("[hang]")));
}

TEST(Doctor, AsksARunningJobWhereItsRanksAre) {
  const Job job("StuckLoader", Place::kProcesses, "0");
  const auto ask = [&] {
    return run_process(
        {kProgram, "doctor", "--job", std::to_string(job.pid())}, {}, kLimit);
  };
  std::string said;
  ASSERT_TRUE(eventually(
      [&] {
        said = ask().out;
        return said.find("waiting in all_reduce") != std::string::npos &&
               said.find("waiting for data") != std::string::npos;
      },
      kLimit))
      << said << job.err();
  EXPECT_THAT(
      said,
      AllOf(
          ContainsRegex(
              "rank 0 of 2 .process [0-9]+.: waiting in "
              "all_reduce.Float.4.., collective [0-9]+, for [0-9.]+ s\n      "
              "([a-z_.]+:[0-9]+ in )?program::add_up"),
          ContainsRegex("rank 1 of 2 .process [0-9]+.: waiting for data"),
          // The user's functions, without those of the loader in between.
          ContainsRegex("program::spin_for_long.*\n.*program::Stuck::get"),
          Not(HasSubstr("libaccelerate")),
          Not(HasSubstr("_M_invoke"))));
}

TEST(Doctor, ReportsThatAProcessIsNotAJob) {
  Subprocess other({"sleep", "60"});
  const auto result = run_process(
      {kProgram, "doctor", "--job", std::to_string(other.pid())}, {}, kLimit);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err,
      HasSubstr("[doctor] No accelerate processes found under PID "));
}

TEST(Doctor, SaysThatThereIsNoProcess) {
  Subprocess over({"true"});
  over.wait(kLimit);
  const auto pid = std::to_string(over.pid());
  const auto result =
      run_process({kProgram, "doctor", "--job", pid}, {}, kLimit);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(
      result.err,
      "[doctor] No process " + pid +
          " on this machine. The process has exited or is running on "
          "another machine\n");
}

} // namespace
} // namespace accelerate::testing
