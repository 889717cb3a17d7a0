// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/roll_call.h"

#include <gmock/gmock.h>

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

HelloMessage hello(int machine_rank = 1) {
  return {
      .version = "0.1.0",
      .machine_rank = machine_rank,
      .host = "node" + std::to_string(machine_rank),
      .num_local = 2,
      .agreement = {{"program", "train --key secret"}, {"cpu", "no"}}};
}

TEST(RollCall, RefusesEachDifferenceByName) {
  const auto reason = [&](auto change) {
    RollCall roll(hello(0), 2, true);
    HelloMessage other = hello();
    change(other);
    return roll.take(other);
  };
  EXPECT_EQ(reason([](auto&) {}), "");
  EXPECT_THAT(
      reason([](auto& m) { m.version = "9.9.9"; }),
      HasSubstr("it runs accelerate 9.9.9, but machine 0 runs 0.1.0"));
  EXPECT_THAT(
      reason([](auto& m) { m.agreement["cpu"] = "yes"; }),
      HasSubstr("it has cpu=yes, but machine 0 has cpu=no"));
  EXPECT_THAT(
      reason([](auto& m) { m.agreement.erase("cpu"); }),
      HasSubstr("cpu=nothing"));
  for (const int rank : {0, 2, 1 << 20}) {
    EXPECT_THAT(
        reason([&](auto& m) { m.machine_rank = rank; }),
        HasSubstr("--machine_rank is " + std::to_string(rank)));
  }
}

TEST(RollCall, RevealsNothingIfAnyoneCanConnect) {
  RollCall roll(hello(0), 3, false);
  EXPECT_EQ(roll.take(hello()), "");
  HelloMessage other = hello(2);
  other.agreement["program"] = "guess";
  EXPECT_THAT(roll.take(other), Not(HasSubstr("secret")));
  EXPECT_THAT(roll.take(hello()), Not(HasSubstr("node1")));
  other.version = "9";
  EXPECT_THAT(roll.take(other), Not(HasSubstr("0.1.0")));
}

TEST(RollCall, AcceptsEachMachineOnceAndAgainAfterItLeft) {
  RollCall roll(hello(0), 3, true);
  EXPECT_EQ(roll.take(hello(2)), "");
  EXPECT_FALSE(roll.is_complete());
  EXPECT_THAT(
      roll.take(hello(2)), HasSubstr("machine_rank 2 is taken by node2"));
  EXPECT_EQ(roll.take(hello(1)), "");
  EXPECT_TRUE(roll.is_complete());
  roll.leave(2);
  EXPECT_FALSE(roll.is_complete());
  EXPECT_EQ(roll.entries()[2]->host, "node2");
  HelloMessage smaller = hello(2);
  smaller.num_local = 1;
  EXPECT_THAT(
      roll.take(smaller),
      HasSubstr("it has 1 processes, but machine 2 had 2 before"));
  EXPECT_EQ(roll.take(hello(2)), "");
  EXPECT_TRUE(roll.is_complete());
}

TEST(RollCall, OfAnElasticJobAssignsMachineRanks) {
  RollCall roll(hello(0), 3, true, true);
  const auto come = [&](const std::string& host, int num_local) {
    HelloMessage newcomer = hello(roll.index_for(host));
    newcomer.host = host;
    newcomer.num_local = num_local;
    EXPECT_EQ(roll.take(newcomer), "");
    return newcomer.machine_rank;
  };
  EXPECT_EQ(come("a", 2), 1);
  EXPECT_EQ(come("b", 2), 2);
  EXPECT_EQ(roll.index_for("c"), kAnyMachine);
  EXPECT_THAT(roll.take(hello(kAnyMachine)), HasSubstr("all 3 machines that"));
  roll.leave(1);
  roll.leave(2);
  EXPECT_EQ(roll.num_here(), 1);
  // Its old place, with another number of processes.
  EXPECT_EQ(come("b", 5), 2);
  EXPECT_EQ(come("c", 1), 1);
}

} // namespace
} // namespace accelerate
