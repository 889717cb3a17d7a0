// SPDX-License-Identifier: Apache-2.0
// Ranks that fail during training: all ranks end, with a reason.
#include <gmock/gmock.h>
#include <signal.h>
#include <torch/torch.h>

#include <future>

#include "accelerate/accelerate.h"
#include "support/rank_bodies.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using namespace std::chrono_literals;

/// Trains forever; after some steps, rank 1 calls `fail`.
RankBody train_until(std::function<void()> fail) {
  return [fail](const AcceleratorOptions& options) {
    Accelerator accelerator(options);
    torch::nn::Linear model(4, 1);
    auto net = accelerator.prepare(model);
    for (int step = 0;; ++step) {
      accelerator.backward(net(torch::ones({2, 4})).sum());
      if (step == 5 && accelerator.process_index() == 1) {
        fail();
      }
    }
    return std::string();
  };
}

const RankBodyRegistration kThrows("throws", train_until([] {
                                     throw std::runtime_error("no more data");
                                   }));
const RankBodyRegistration kKilled("is killed", train_until([] {
                                     kill(getpid(), SIGKILL);
                                   }));
const RankBodyRegistration kExits("exits", train_until([] { _exit(0); }));

struct Fault {
  const char* body;
  int exit_code;
  std::vector<const char*> messages;
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.body;
}

class RankThat : public ::testing::TestWithParam<Fault> {};

// The run must not wait for the time limit of a collective, which is longer
// than this test may take.
TEST_P(RankThat, EndsTheRun) {
  const auto result = launch_body(2, GetParam().body);
  EXPECT_EQ(result.exit_code, GetParam().exit_code) << result.err;
  for (const char* message : GetParam().messages) {
    EXPECT_THAT(result.err, HasSubstr(message));
  }
  EXPECT_THAT(result.err, Not(HasSubstr("imed out")));
}

const Fault kFaults[] = {
    {"throws", 1, {"[launch] Rank 1 ", "no more data"}},
    {"is killed", 128 + SIGKILL, {"[launch] Rank 1 was killed (SIGKILL)"}},
    {"exits",
     1,
     {"[backward] Another rank exited during collective ",
      "[launch] Rank 0 ",
      "rank 1 had already finished"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, RankThat, ::testing::ValuesIn(kFaults));

// After a failed collective, Gloo's own exceptions do not contain its name.
TEST(Forward, IsACommErrorInOneLineAfterATimeout) {
  std::promise<void> rank_0_is_done;
  run_ranks(
      2,
      [&](ProcessGroup group) {
        Accelerator accelerator({.process_group = group});
        torch::nn::Linear model(4, 1);
        model->register_buffer("count", torch::zeros(1));
        auto net = accelerator.prepare(model);
        const auto step = [&] {
          accelerator.backward(net(torch::ones({2, 4})).sum());
        };
        step();
        if (group.rank() == 1) {
          rank_0_is_done.get_future().wait();
          return;
        }
        for (int i = 0; i < 3; ++i) {
          EXPECT_THAT(
              step,
              ThrowsMessage<CommError>(
                  AllOf(StartsWith("["), Not(HasSubstr("\n")))));
        }
        rank_0_is_done.set_value();
      },
      {.timeout = 500ms});
}

} // namespace
} // namespace accelerate::testing
