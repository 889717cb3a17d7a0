// SPDX-License-Identifier: Apache-2.0
// The table of backends, with the test's own rows.
#include "training/comm/backends/backends.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>

#include "accelerate/distributed/process_group.h"
#include "accelerate/error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::atomic<int> num_reductions = 0;
thread_local at::Tensor last_reduced;

/// An external backend: counts, and lets Gloo do the work.
class CountingBackend : public c10d::Backend {
 public:
  explicit CountingBackend(c10::intrusive_ptr<c10d::Backend> gloo)
      : c10d::Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "counting"; }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options)
      override {
    ++num_reductions;
    last_reduced = tensors[0];
    return gloo_->allreduce(tensors, options);
  }
  WorkPtr _allgather_base(
      at::Tensor& whole,
      at::Tensor& part,
      const c10d::AllgatherOptions& options) override {
    return gloo_->_allgather_base(whole, part, options);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return gloo_->barrier(options);
  }
  void shutdown() override { gloo_->shutdown(); }

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
};

c10::intrusive_ptr<c10d::Backend> make_counting(
    const BackendArguments& arguments) {
  BackendArguments own = arguments;
  // The parent is one of ours: Gloo finds its own way.
  own.parent = {};
  own.address = "127.0.0.1";
  return c10::make_intrusive<CountingBackend>(find_backend("gloo")->make(own));
}

class Backends : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    register_backend(
        {.name = "counting",
         .devices = {c10::kCPU},
         .available = [] { return true; },
         .make = make_counting});
    register_backend(
        {.name = "pretend",
         .devices = {c10::kPrivateUse1},
         .available = [] { return true; },
         .make = make_counting});
    register_backend(
        {.name = "null",
         .devices = {c10::kCPU},
         .available = [] { return true; },
         .make = [](const BackendArguments&)
             -> c10::intrusive_ptr<c10d::Backend> { return {}; }});
    register_backend(
        {.name = "broken",
         .devices = {c10::kXPU},
         .available = [] { return false; },
         .make = make_counting});
  }
};

TEST_F(Backends, CarryGroupsUnderTheirNames) {
  num_reductions = 0;
  run_ranks(
      2,
      [](ProcessGroup group) {
        EXPECT_EQ(group.backend(), "counting");
        auto value = torch::ones(1);
        group.all_reduce(value, ReduceOp::kSum);
        EXPECT_EQ(value.item<int>(), 2);
      },
      {.backend = "counting"});
  EXPECT_EQ(num_reductions, 2);
}

TEST_F(Backends, GetTheCallersMemoryButNotItsTensor) {
  run_ranks(
      2,
      [](ProcessGroup group) {
        auto value = torch::ones(1);
        group.all_reduce(value, ReduceOp::kSum);
        EXPECT_FALSE(last_reduced.is_same(value));
        EXPECT_EQ(last_reduced.const_data_ptr(), value.const_data_ptr());
        last_reduced.reset();
      },
      {.backend = "counting"});
}

TEST_F(Backends, CarrySubgroupsToo) {
  num_reductions = 0;
  run_ranks(
      3,
      [](ProcessGroup group) {
        const auto part = group.subgroup(
            group.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2});
        part.all_reduce(torch::ones(1), ReduceOp::kSum);
      },
      {.backend = "counting"});
  EXPECT_EQ(num_reductions, 2);
}

TEST_F(Backends, ThrowIfTheyCreateNothing) {
  EXPECT_THAT(
      [] { run_ranks(2, [](ProcessGroup) {}, {.backend = "null"}); },
      ThrowsMessage<ConfigError>(
          HasSubstr("The `make` function of backend 'null' returned null")));
}

TEST_F(Backends, ArePreferredOnTheirNativeDevice) {
  EXPECT_EQ(default_backend_for(c10::kCPU), "gloo");
  EXPECT_EQ(default_backend_for(c10::kPrivateUse1), "pretend");
  EXPECT_EQ(default_backend_for(c10::kXPU), "");
  EXPECT_EQ(
      default_backend_for(c10::kCUDA),
      find_backend("nccl")->available() ? "nccl" : "gloo");
}

TEST_F(Backends, AreJoinedByOneForTheCpu) {
  EXPECT_EQ(backends_by_device("gloo"), "gloo");
  EXPECT_EQ(backends_by_device("nccl"), "cpu:gloo,cuda:nccl");
  EXPECT_EQ(backends_by_device("pretend"), "cpu:gloo,privateuseone:pretend");
}

TEST_F(Backends, AreChosenByNameOrByDevice) {
  const ProcessTopology two{0, 2, 0, 2, 0};
  EXPECT_EQ(choose_backend(Backend::kAuto, two, /*cpu=*/true), "gloo");
  EXPECT_EQ(choose_backend("gloo", two, true), "gloo");
  EXPECT_EQ(choose_backend("counting", two, true), "counting");
  for (const char* wanted :
       {"nccl", "cuda:nccl,cpu:gloo", "pretend", "broken", "mpi"}) {
    EXPECT_THAT(
        [&] { choose_backend(wanted, two, true); },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr(wanted), HasSubstr("Use gloo or counting or null"))));
  }
}

TEST_F(Backends, AreRejectedIfTheirRowIsIncomplete) {
  EXPECT_THAT(
      [] {
        register_backend(
            {.name = "gloo",
             .devices = {c10::kCPU},
             .available = [] { return true; },
             .make = make_counting});
      },
      ThrowsMessage<UsageError>(HasSubstr("'gloo' is already registered")));
  EXPECT_THROW(register_backend({.name = "nothing"}), UsageError);
}

} // namespace
} // namespace accelerate
