// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <mutex>
#include <thread>

#include "accelerate/accelerate.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using namespace std::chrono_literals;

TEST(Accelerator, IsASingleProcessWithoutALauncher) {
  Accelerator accelerator({.cpu = true});
  EXPECT_EQ(accelerator.device(), torch::Device(torch::kCPU));
  EXPECT_EQ(accelerator.distributed_type(), DistributedType::kNo);
  EXPECT_EQ(accelerator.num_processes(), 1);
  EXPECT_TRUE(accelerator.is_main_process());
  EXPECT_TRUE(accelerator.is_local_main_process());
  EXPECT_TRUE(accelerator.is_last_process());
  accelerator.wait_for_everyone();
  EXPECT_FALSE(accelerator.check_trigger());
}

TEST(Accelerator, KnowsItsRank) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kMultiCpu);
    EXPECT_EQ(accelerator.process_index(), group.rank());
    EXPECT_EQ(accelerator.local_process_index(), group.rank());
    EXPECT_EQ(accelerator.is_main_process(), group.rank() == 0);
    EXPECT_EQ(accelerator.is_last_process(), group.rank() == 1);
  });
}

TEST(Accelerator, RejectsAnEnvironmentOfAnotherRank) {
  run_ranks(2, [](ProcessGroup group) {
    EXPECT_THAT(
        [&] {
          Accelerator(
              {.environment = ProcessEnvironment{{0, 3, 0, 3, 0}, {}},
               .process_group = group});
        },
        ThrowsMessage<ConfigError>(HasSubstr("rank 0 of 3")));
  });
}

TEST(Accelerator, PrintsOncePerMachine) {
  ::testing::internal::CaptureStdout();
  run_ranks(3, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    accelerator.print("loss ", 0.5, ' ', "of ", group.world_size());
  });
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "loss 0.5 of 3\n");
}

TEST(Accelerator, LetsTheMainProcessGoFirst) {
  std::mutex mutex;
  std::vector<int> order;
  run_ranks(3, [&](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    const auto guard = accelerator.main_process_first();
    if (accelerator.is_main_process()) {
      std::this_thread::sleep_for(50ms);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    order.push_back(group.rank());
  });
  ASSERT_EQ(order.size(), 3U);
  EXPECT_EQ(order[0], 0);
}

TEST(Accelerator, FailsOtherRanksIfTheMainProcessThrowsFirst) {
  EXPECT_THAT(
      [] {
        run_ranks(2, [](ProcessGroup group) {
          Accelerator accelerator({.process_group = group});
          const auto guard = accelerator.main_process_first();
          if (accelerator.is_main_process()) {
            throw std::runtime_error("download failed");
          }
          ADD_FAILURE() << "rank 1 went on without the download";
        });
      },
      ThrowsMessage<std::runtime_error>("download failed"));
}

TEST(Accelerator, StaysInStepIfTheMainProcessThrowsFirst) {
  run_ranks(3, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    try {
      const auto guard = accelerator.main_process_first();
      EXPECT_TRUE(accelerator.is_main_process());
      throw std::runtime_error("download failed");
    } catch (const CommError&) {
      EXPECT_FALSE(accelerator.is_main_process());
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "download failed");
    }
    EXPECT_EQ(accelerator.reduce(torch::ones(1)).item<int>(), 3);
  });
}

TEST(Accelerator, RunsFunctionsOnChosenProcesses) {
  std::mutex mutex;
  std::vector<std::string> calls;
  run_ranks(3, [&](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    const auto note = [&](const char* what) {
      return [&mutex, &calls, what, rank = group.rank()] {
        const std::lock_guard<std::mutex> lock(mutex);
        calls.push_back(what + std::to_string(rank));
      };
    };
    accelerator.on_main_process(note("main"));
    accelerator.on_local_main_process(note("local"));
    accelerator.on_last_process(note("last"));
    accelerator.on_process(1, note("process"));
  });
  EXPECT_THAT(
      calls,
      ::testing::UnorderedElementsAre("main0", "local0", "last2", "process1"));
}

TEST(Accelerator, SplitsInputsIntoContiguousParts) {
  run_ranks(3, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    const std::vector<int> inputs = {0, 1, 2, 3, 4, 5, 6};
    const std::vector<int> parts[] = {{0, 1, 2}, {3, 4}, {5, 6}};
    const std::vector<int> padded[] = {{0, 1, 2}, {3, 4, 6}, {5, 6, 6}};
    const auto rank = static_cast<size_t>(group.rank());
    EXPECT_EQ(accelerator.split_between_processes(inputs), parts[rank]);
    EXPECT_EQ(accelerator.split_between_processes(inputs, true), padded[rank]);
    EXPECT_TRUE(accelerator.split_between_processes(torch::arange(7))
                    .equal(torch::tensor(parts[rank], torch::kLong)));
    const std::map<std::string, std::vector<int>> table = {
        {"a", inputs}, {"b", inputs}};
    EXPECT_EQ(accelerator.split_between_processes(table).at("b"), parts[rank]);
    // Fewer elements than ranks: the last one is repeated if requested.
    const std::vector<int> one = {9};
    EXPECT_EQ(
        accelerator.split_between_processes(one).size(), rank == 0 ? 1U : 0U);
    EXPECT_THAT(accelerator.split_between_processes(one, true), ElementsAre(9));
    EXPECT_THAT(
        accelerator.split_between_processes(std::vector<int>{}, true),
        IsEmpty());
    EXPECT_THROW(
        accelerator.split_between_processes(
            std::map<std::string, std::vector<int>>{{"a", inputs}, {"b", one}}),
        UsageError);
  });
}

TEST(Accelerator, ShowsATriggerToAllRanksOnce) {
  run_ranks(3, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    EXPECT_FALSE(accelerator.check_trigger());
    if (group.rank() == 2) {
      accelerator.set_trigger();
    }
    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}

TEST(Accelerator, OffersTheCollectives) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    auto own = torch::tensor({group.rank()});
    EXPECT_TRUE(accelerator.gather(own).equal(torch::tensor({0, 1})));
    EXPECT_EQ(accelerator.reduce(own).item<int>(), 1);
    EXPECT_EQ(
        accelerator.reduce(own.to(torch::kFloat), ReduceOp::kMean)
            .item<float>(),
        0.5F);
    EXPECT_EQ(
        accelerator.pad_across_processes(torch::ones(1 + group.rank())).numel(),
        2);
    EXPECT_THAT(
        accelerator.gather_object(std::to_string(group.rank())),
        ElementsAre("0", "1"));
    accelerator.broadcast(own, 1);
    EXPECT_EQ(own.item<int>(), 1);
  });
}

TEST(Accelerator, SynchronizesRandomStates) {
  Accelerator accelerator;
  torch::manual_seed(3);
  accelerator.synchronize_rng_states();
  const auto numbers = torch::rand(4);
  torch::manual_seed(3);
  EXPECT_TRUE(torch::rand(4).equal(numbers));
}

TEST(Accelerator, RejectsCollectivesAfterTheEnd) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    accelerator.wait_for_everyone();
    accelerator.end_training();
    EXPECT_THAT(
        [&] { accelerator.wait_for_everyone(); },
        ThrowsMessage<UsageError>(HasSubstr("end_training")));
  });
}

/// What rank 1 does while rank 0 gathers, as in a gather inside of
/// `if (is_main_process())`.
struct Elsewhere {
  const char* name;
  std::function<void(Accelerator&, PreparedModel<torch::nn::SequentialImpl>&)>
      call;
  bool has_buffers = false;
};
void PrintTo(const Elsewhere& elsewhere, std::ostream* out) {
  *out << elsewhere.name;
}

class GatherAgainst : public ::testing::TestWithParam<Elsewhere> {};

TEST_P(GatherAgainst, AnotherCollectiveNamesBoth) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    torch::nn::Sequential model(torch::nn::Linear(4, 4));
    if (GetParam().has_buffers) {
      model->push_back(torch::nn::BatchNorm1d(4));
    }
    auto net = accelerator.prepare(model);
    const auto step = [&] {
      accelerator.backward(net(torch::ones({2, 4})).sum());
    };
    for (int i = 0; i < 3; ++i) {
      step();
    }
    EXPECT_THAT(
        [&] {
          if (group.rank() == 0) {
            accelerator.gather(torch::ones(3));
          } else {
            GetParam().call(accelerator, net);
          }
        },
        ThrowsMessage<MismatchError>(AllOf(
            HasSubstr("gather() on rank 0"),
            HasSubstr("is_main_process"),
            HasSubstr(GetParam().name))));
    // The group is still usable.
    EXPECT_EQ(accelerator.reduce(1.0), 2.0);
    step();
  });
}

const Elsewhere kElsewhere[] = {
    {"wait_for_everyone", [](auto& a, auto&) { a.wait_for_everyone(); }},
    {"check_trigger", [](auto& a, auto&) { a.check_trigger(); }},
    {"should_stop", [](auto& a, auto&) { a.should_stop(); }},
    {"main_process_first",
     [](auto& a, auto&) { const auto first = a.main_process_first(); }},
    {"backward() was called on rank 1",
     [](auto& a, auto& net) {
       a.backward(net(torch::ones({2, 4})).sum());
     }},
    {"backward() with a weight was called on rank 1",
     [](auto& a, auto& net) {
       a.backward(net(torch::ones({2, 4})).sum(), {.weight = 2});
     }},
    {"forward pass of a prepared model",
     [](auto&, auto& net) {
       net(torch::ones({2, 4}));
     },
     /*has_buffers=*/true},
};
INSTANTIATE_TEST_SUITE_P(
    Accelerator,
    GatherAgainst,
    ::testing::ValuesIn(kElsewhere));

TEST(Accelerator, ChecksRawCollectivesInDebugMode) {
  run_ranks(2, [](ProcessGroup group) {
    const auto mismatch = [&] {
      group.all_reduce(torch::ones(1 + group.rank()), ReduceOp::kSum);
    };
    Accelerator accelerator(
        {.cpu = true, .debug = true, .process_group = group});
    EXPECT_THROW(mismatch(), MismatchError);
    EXPECT_THROW(
        accelerator.process_group().all_gather(torch::ones(1 + group.rank())),
        MismatchError);
  });
}

} // namespace
} // namespace accelerate
