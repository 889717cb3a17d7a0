// SPDX-License-Identifier: Apache-2.0
// First contact between processes.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <thread>

#include "accelerate/error.h"
#include "accelerate/process_group.h"
#include "hardware/ports.h"
#include "support/rank_bodies.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace std::chrono_literals;

ProcessEnvironment environment(int rank, int world_size, int port) {
  return {
      {rank, world_size, rank, world_size, 0},
      {.address = "127.0.0.1", .port = port},
      "torchrun"};
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

TEST(Connect, NamesTheRanksThatDidNotArrive) {
  const int port = find_free_port();
  const ProcessGroupOptions options{.connect_timeout = 500ms};
  EXPECT_THAT(
      [&] { ProcessGroup::connect(environment(0, 3, port), options); },
      ThrowsMessage<TimeoutError>(HasSubstr("rank(s) 1, 2 of 3")));
}

TEST(Connect, SaysSoWhereRank0IsNotThere) {
  const ProcessGroupOptions options{.connect_timeout = 500ms};
  EXPECT_THAT(
      [&] {
        ProcessGroup::connect(environment(1, 2, find_free_port()), options);
      },
      ThrowsMessage<TimeoutError>(
          AllOf(HasSubstr("rank 1"), HasSubstr("did not find rank 0"))));
}

const testing::RankBodyRegistration kTwins(
    "twins",
    [](const AcceleratorOptions&) {
      auto found = detect_environment();
      found.topology.rank = std::min(found.topology.rank, 1);
      ProcessGroup::connect(found);
      return std::string();
    });

TEST(Connect, RefusesTwoProcessesWithOneRank) {
  const auto result = testing::launch_body(3, "twins");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("rank 1 arrived twice"));
}

TEST(Connect, SaysWhatIsMissingWhereNoMeetingPointIsKnown) {
  EXPECT_THAT(
      [] {
        ProcessGroup::connect({{0, 2, 0, 2, 0}, {}, "PMI"});
      },
      ThrowsMessage<ConfigError>(
          AllOf(HasSubstr("PMI started 2"), HasSubstr("MASTER_ADDR"))));
}

TEST(Connect, SaysSoWhereThePortIsTaken) {
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
