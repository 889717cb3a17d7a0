// SPDX-License-Identifier: Apache-2.0
// Connecting processes.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <unistd.h>

#include <filesystem>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerate/distributed/process_group.h"
#include "accelerate/error.h"
#include "core/hardware/ports.h"
#include "support/rank_bodies.h"
#include "training/comm/connect.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using namespace std::chrono_literals;

ProcessEnvironment environment(int rank, int world_size, int port) {
  return {
      {rank, world_size, rank, world_size, 0},
      {.address = "127.0.0.1", .port = port}};
}

const testing::RankBodyRegistration kTwoGroups(
    "two groups",
    [](const AcceleratorOptions&) {
      std::string seen;
      const auto found = detect_environment();
      const auto first = ProcessGroup::connect(found);
      const auto second = ProcessGroup::connect(found);
      for (const auto& group : {second, first}) {
        auto value = torch::full({1}, group.rank() + 1);
        group.all_reduce(value, ReduceOp::kSum);
        seen += std::to_string(value.item<int64_t>()) + group.backend();
      }
      return seen;
    });

TEST(Connect, LetsOneRunHaveSeveralGroups) {
  EXPECT_THAT(
      testing::run_body(testing::RankKind::kProcesses, 3, "two groups"),
      Each("6gloo6gloo"));
}

// The pattern of find_executable_batch_size: each try creates everything again.
const testing::RankBodyRegistration kTenTries(
    "ten tries",
    [](AcceleratorOptions options) {
      options.cpu = true;
      std::string seen;
      for (int i = 0; i < 10; ++i) {
        const Accelerator accelerator(options);
        const auto own = torch::full({1}, accelerator.process_index() + i);
        seen += std::to_string(accelerator.reduce(own).item<int64_t>()) + ' ';
      }
      return seen;
    });

const testing::RankBodyRegistration kTenEnds(
    "ten ends",
    [](AcceleratorOptions options) {
      options.cpu = true;
      std::string seen;
      for (int i = 0; i < 10; ++i) {
        Accelerator accelerator(options);
        const auto own = torch::full({1}, accelerator.process_index() + i);
        seen += std::to_string(accelerator.reduce(own).item<int64_t>()) + ' ';
        accelerator.end_training();
      }
      return seen;
    });

class SharedConnection : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    Loops,
    SharedConnection,
    ::testing::Values("ten tries", "ten ends"),
    [](const auto& info) {
      return std::string(
          info.param == std::string("ten tries") ? "Tries" : "Ends");
    });

TEST_P(SharedConnection, OutlivesAccelerators) {
  EXPECT_THAT(
      testing::run_body(testing::RankKind::kProcesses, 2, GetParam()),
      Each("1 3 5 7 9 11 13 15 17 19 "));
}

const testing::RankBodyRegistration kSameConnection(
    "same connection",
    [](AcceleratorOptions options) {
      options.cpu = true;
      const auto impl_of = [](const Accelerator& accelerator) {
        return accelerator.process_group().impl();
      };
      Accelerator first(options);
      const Accelerator second(options);
      std::string seen = impl_of(first) == impl_of(second) ? "shared " : "two ";
      // Another timeout means another connection.
      options.connection.timeout = 1min;
      const Accelerator patient(options);
      seen += impl_of(first) == impl_of(patient) ? "shared " : "two ";
      options.connection.timeout = ProcessGroupOptions().timeout;
      first.end_training();
      seen += second.process_group().is_shut_down() ? "ended " : "alive ";
      const Accelerator third(options);
      seen += third.process_group().is_shut_down() ? "ended " : "alive ";
      const auto own = torch::full({1}, third.process_index() + 1);
      return seen + std::to_string(third.reduce(own).item<int64_t>());
    });

TEST(SharedConnection, EndsForAllAccelerators) {
  EXPECT_THAT(
      testing::run_body(testing::RankKind::kProcesses, 2, "same connection"),
      Each("shared two ended alive 3"));
}

TEST(Connect, NamesTheRanksThatDidNotArrive) {
  const int port = find_free_port();
  const ProcessGroupOptions options{.connect_timeout = 500ms};
  EXPECT_THAT(
      [&] { ProcessGroup::connect(environment(0, 3, port), options); },
      ThrowsMessage<TimeoutError>(HasSubstr("rank(s) 1, 2 of 3")));
}

TEST(Connect, ReportsThatRank0IsMissing) {
  const ProcessGroupOptions options{.connect_timeout = 500ms};
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(
      [&] {
        ProcessGroup::connect(environment(1, 2, find_free_port()), options);
      },
      ThrowsMessage<TimeoutError>(
          AllOf(HasSubstr("rank 1"), HasSubstr("did not find rank 0"))));
  // The exception is sufficient.
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Connect, TimesOutIfRank0IsMissing) {
  const int port = find_free_port();
  EXPECT_THROW(
      ProcessGroup::connect(environment(1, 2, port), {.connect_timeout = 3s}),
      TimeoutError);
}

constexpr auto kPatience = 2s;

const testing::RankBodyRegistration kLateMain(
    "late main",
    [](const AcceleratorOptions&) {
      const auto found = detect_environment();
      if (found.topology.rank == 0) {
        std::this_thread::sleep_for(kPatience + 1s);
      }
      const auto group =
          ProcessGroup::connect(found, {.connect_timeout = kPatience});
      auto value = torch::full({1}, group.rank() + 1);
      group.all_reduce(value, ReduceOp::kSum);
      std::cout << "sum " << value.item<int64_t>() << std::endl;
      return std::string();
    });

TEST(Connect, WaitsForRank0WhileItsProcessLives) {
  const auto result = testing::launch_body(2, "late main");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.err, HasSubstr("rank 1 has waited 2 s for rank 0, which has not"));
}

const testing::RankBodyRegistration kAbsentMain(
    "absent main",
    [](const AcceleratorOptions&) {
      const auto found = detect_environment();
      if (found.topology.rank == 0) {
        std::this_thread::sleep_for(kPatience);
        _exit(0);
      }
      ProcessGroup::connect(found, {.connect_timeout = 600s});
      return std::string();
    });

TEST(Connect, FailsIfRank0ExitsBeforeConnecting) {
  const auto result = testing::launch_body(2, "absent main");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("rank 0, which exited without creating an Accelerator"),
          HasSubstr("rank 0 had already finished")));
}

TEST(Connect, DoesNotWaitForASilentListener) {
  const int port = find_free_port();
  testing::Subprocess stranger(
      {"python3",
       "-c",
       "import socket,time\ns=socket.socket()\ns.bind(('127.0.0.1'," +
           std::to_string(port) +
           "))\ns.listen()\nprint('up',flush=True)\n"
           "time.sleep(600)"});
  ASSERT_TRUE(testing::eventually([&] { return stranger.out() == "up\n"; }));
  auto led_astray = environment(1, 2, port);
  for (const int pid : {0, getpid()}) {
    led_astray.rendezvous.main_pid = pid;
    EXPECT_THROW(
        ProcessGroup::connect(led_astray, {.connect_timeout = 500ms}),
        TimeoutError);
  }
}

class UnknownHost : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(
    Ranks,
    UnknownHost,
    ::testing::Values(0, 1),
    [](const auto& info) { return "Rank" + std::to_string(info.param); });

TEST_P(UnknownHost, IsNamedAsTheCause) {
  auto unknown = environment(GetParam(), 2, find_free_port());
  unknown.rendezvous.address = "no.such.host.invalid";
  EXPECT_THAT(
      [&] { ProcessGroup::connect(unknown, {.connect_timeout = 300ms}); },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("no.such.host.invalid"), HasSubstr("within 0.3 s"))));
}

const testing::RankBodyRegistration kLeavesEarly(
    "leaves early",
    [](const AcceleratorOptions&) {
      const auto found = detect_environment();
      if (found.topology.rank == 0) {
        // Rank 1 finds the store, but no rank 0.
        connect_store(found, Deadline(30s));
        _exit(3);
      }
      ProcessGroup::connect(found);
      return std::string();
    });

TEST(Connect, ReportsALostPeerInOneLine) {
  const auto result = testing::launch_body(2, "leaves early");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(
      result.err,
      AllOf(
          Not(HasSubstr("frame #")), Not(HasSubstr("Exception raised from"))));
}

const testing::RankBodyRegistration kNumFiles(
    "files after ends",
    [](AcceleratorOptions options) {
      options.cpu = true;
      const auto num_files = [] {
        using Files = std::filesystem::directory_iterator;
        return std::distance(Files("/proc/self/fd"), Files());
      };
      const auto cycle = [&] { Accelerator(options).end_training(); };
      cycle();
      const auto before = num_files();
      for (int i = 0; i < 5; ++i) {
        cycle();
      }
      // Background threads may still be closing files.
      for (int i = 0; i < 1000 && num_files() > before; ++i) {
        std::this_thread::sleep_for(10ms);
      }
      return num_files() > before ? "more" : "as before";
    });

TEST(SharedConnection, ClosesAllFilesAtTheEnd) {
  EXPECT_THAT(
      testing::run_body(testing::RankKind::kProcesses, 2, "files after ends"),
      Each("as before"));
}

const testing::RankBodyRegistration kTwins(
    "twins",
    [](const AcceleratorOptions&) {
      auto found = detect_environment();
      found.topology.rank = std::min(found.topology.rank, 1);
      ProcessGroup::connect(found);
      return std::string();
    });

TEST(Connect, RejectsTwoProcessesWithTheSameRank) {
  const auto result = testing::launch_body(3, "twins");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("rank 1 connected twice"));
}

TEST(Connect, ReportsAMissingAddress) {
  EXPECT_THAT(
      [] {
        constexpr static Starter kPmi{.name = "PMI"};
        ProcessGroup::connect({{0, 2, 0, 2, 0}, {}, &kPmi});
      },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("PMI started 2"), HasSubstr("MASTER_ADDR"))));
}

TEST(Connect, ReportsThatThePortIsInUse) {
  const int port = find_free_port();
  const ProcessGroupOptions options{.connect_timeout = 300ms};
  testing::Subprocess other(
      {"python3",
       "-c",
       "import socket,time\ns=socket.socket()\ns.bind(('0.0.0.0'," +
           std::to_string(port) +
           "))\ns.listen()\nprint('up',flush=True)\n"
           "time.sleep(30)"});
  ASSERT_TRUE(testing::eventually([&] { return other.out() == "up\n"; }));
  EXPECT_THAT(
      [&] { ProcessGroup::connect(environment(0, 2, port), options); },
      ThrowsMessage<CommError>(HasSubstr("cannot listen")));
}

} // namespace
} // namespace accelerate
