// SPDX-License-Identifier: Apache-2.0
// What a thread's record reports, and its clock.
#include "core/observe/rank_record.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "accelerate/error.h"
#include "core/observe/native_stack.h"
#include "core/observe/script_stack.h"
#include "core/observe/watchdog.h"
#include "support/subprocess.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// Found by name in a stack.
[[gnu::noinline]] void spin_in_a_test(
    std::atomic<pid_t>& thread,
    std::atomic<bool>& is_over,
    const std::string& /*name*/) {
  thread = RankRecord::of_this_thread().thread();
  while (!is_over) {
  }
}

/// Spins in its first instruction, so that the byte before it belongs to
/// another function.
extern "C" void spin_at_once_in_a_test();
#if defined(__aarch64__)
#define ACCELERATE_TEST_GO_TO "b "
#else
#define ACCELERATE_TEST_GO_TO "jmp "
#endif
asm(".text\n"
    "another_in_a_test: .cfi_startproc\n"
    "  " ACCELERATE_TEST_GO_TO
    "another_in_a_test\n"
    ".cfi_endproc\n"
    ".global spin_at_once_in_a_test\n"
    "spin_at_once_in_a_test: .cfi_startproc\n"
    "  " ACCELERATE_TEST_GO_TO
    "spin_at_once_in_a_test\n"
    ".cfi_endproc\n");

std::string text_of(const Stack& stack) {
  std::string text;
  for (const auto& frame : stack.frames) {
    text += frame.text + '\n';
  }
  return text;
}

TEST(NativeStack, IsTakenOfAThreadThatSpins) {
  std::atomic<pid_t> thread = 0;
  std::atomic<bool> is_over = false;
  std::thread spinning([&] { spin_in_a_test(thread, is_over, "name"); });
  ASSERT_TRUE(testing::eventually([&] { return thread != 0; }));
  const auto stack = native_stack(thread);
  is_over = true;
  spinning.join();
  EXPECT_THAT(
      text_of(stack),
      AllOf(HasSubstr("spin_in_a_test("), HasSubstr("std::string const&")));
}

TEST(NativeStack, NamesAFunctionThatIsAtItsFirstInstruction) {
  const auto show = [] {
    std::atomic<pid_t> thread = 0;
    std::thread spinning([&] {
      thread = RankRecord::of_this_thread().thread();
      spin_at_once_in_a_test();
    });
    testing::eventually([&] {
      return thread != 0 && text_of(native_stack(thread)).find("_in_a_test") !=
                                std::string::npos;
    });
    std::cerr << text_of(native_stack(thread));
    _exit(0);
  };
  EXPECT_EXIT(
      show(),
      ::testing::ExitedWithCode(0),
      HasSubstr("spin_at_once_in_a_test"));
}

TEST(NativeStack, KeepsAHandlerOfTheProgram) {
  static std::atomic<int> num_calls = 0;
  struct sigaction own {};
  struct sigaction before {};
  own.sa_handler = [](int) { ++num_calls; };
  sigaction(SIGURG, &own, &before);
  EXPECT_TRUE(
      native_stack(RankRecord::of_this_thread().thread()).frames.empty());
  sigaction(SIGURG, &before, nullptr);
  EXPECT_EQ(num_calls, 0);
}

/// An interpreter that does not answer when its stack is requested.
struct StuckScript {
  StuckScript() {
    set_script_stack([this] {
      while (!is_over) {
        std::this_thread::sleep_for(1ms);
      }
      return ScriptStack{};
    });
    EXPECT_FALSE(script_stack().has_value());
  }
  std::atomic<bool> is_over = false;
};

TEST(ScriptStack, IsNotAwaitedForever) {
  StuckScript script;
  script.is_over = true;
  drop_script_stack();
  EXPECT_FALSE(script_stack().has_value());
}

TEST(ScriptStack, IsNotAwaitedByAForkedChildThatDidNotRequestIt) {
  StuckScript script;
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    drop_script_stack();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  script.is_over = true;
  drop_script_stack();
  EXPECT_EQ(status, 0);
}

TEST(Record, SaysWhatAThreadIsIn) {
  auto& record = RankRecord::of_this_thread();
  EXPECT_EQ(record.phase(), StepPhase::kUser);
  {
    const PhaseScope data(StepPhase::kData);
    EXPECT_EQ(record.phase(), StepPhase::kData);
    const OperationScope scope(
        StepPhase::kCommunication, nullptr, {"gather", 7, "Float", 2, {3, 4}});
    EXPECT_EQ(record.phase(), StepPhase::kCommunication);
    EXPECT_EQ(record.operation(), "gather Float[3,4]");
    EXPECT_EQ(record.own_number(), 7u);
    const TopicScope topic("gather of a dict");
    EXPECT_EQ(record.operation(), "gather of a dict");
  }
  EXPECT_EQ(record.phase(), StepPhase::kUser);
  EXPECT_EQ(record.operation(), "");
  EXPECT_EQ(record.number(), 7u);
  EXPECT_EQ(record.own_number(), 0u);
  const OperationScope made_of_others(
      StepPhase::kBackward, nullptr, {"backward"});
  EXPECT_EQ(record.own_number(), 0u);
  EXPECT_EQ(record.number(), 7u);
}

TEST(Record, IsGoneWithItsThread) {
  const auto count = RankRecord::all().size();
  std::thread([] { RankRecord::of_this_thread(); }).join();
  EXPECT_EQ(RankRecord::all().size(), count);
}

TEST(Threshold, IsTheOptionsThenTheVariables) {
  const auto variable = [](const char* value) {
    return [value](const std::string&) {
      return std::optional<std::string>(value);
    };
  };
  const auto none = [](const std::string&) {
    return std::optional<std::string>();
  };
  EXPECT_EQ(hang_threshold(std::nullopt, none), 10s);
  EXPECT_EQ(hang_threshold(std::nullopt, variable("0.5")), 500ms);
  EXPECT_EQ(hang_threshold(std::nullopt, variable("0")), 0ms);
  EXPECT_EQ(hang_threshold(3s, variable("nonsense")), 3s);
  for (const char* bad : {"nonsense", "-1", "nan", "inf", "1s", "1e9"}) {
    EXPECT_THROW(hang_threshold(std::nullopt, variable(bad)), ConfigError)
        << bad;
  }
}

// A separate thread, so that its clock starts at zero.
StepTimes times_of(const std::function<void()>& work) {
  StepTimes times;
  std::thread([&] {
    work();
    times = RankRecord::of_this_thread().step_times();
  }).join();
  return times;
}

void one_step(std::chrono::milliseconds data, bool updates) {
  auto& record = RankRecord::of_this_thread();
  {
    const PhaseScope phase(StepPhase::kData);
    std::this_thread::sleep_for(data);
  }
  const PhaseScope phase(StepPhase::kOptimizer);
  if (updates) {
    record.note_update();
  }
}

TEST(StepClock, CountsUpdates) {
  const auto times = times_of([] {
    for (int step = 0; step < 3; ++step) {
      one_step(0ms, false);
      one_step(0ms, true);
    }
    one_step(0ms, false);
  });
  EXPECT_EQ(times.num_steps, 3);
  EXPECT_EQ(times.last.size(), 3u);
}

// As in a loop of one process, whose batches and forwards are torch's own.
TEST(StepClock, CountsUpdatesOfWhichOnlyTheBackwardIsSeen) {
  const auto times = times_of([] {
    for (int step = 0; step < 3; ++step) {
      { const PhaseScope backward(StepPhase::kBackward); }
      { const PhaseScope backward(StepPhase::kBackward); }
      const PhaseScope optimizer(StepPhase::kOptimizer);
      RankRecord::of_this_thread().note_update();
    }
  });
  EXPECT_EQ(times.num_steps, 3);
  EXPECT_GT(times.sum.backward, 0);
}

TEST(StepClock, KeepsAThousandStepsAndCountsAll) {
  const auto times = times_of([] {
    for (int step = 0; step < 1003; ++step) {
      one_step(0ms, true);
    }
  });
  EXPECT_EQ(times.num_steps, 1003);
  EXPECT_EQ(times.last.size(), 1000u);
}

TEST(StepClock, EachMomentCountsOnceAndForTheInnermost) {
  const auto begin = RankRecord::Clock::now();
  const auto times = times_of([] {
    auto& record = RankRecord::of_this_thread();
    const PhaseScope data(StepPhase::kData);
    {
      const PhaseScope communication(StepPhase::kCommunication);
      std::this_thread::sleep_for(20ms);
    }
    record.note_update();
  });
  const std::chrono::duration<double> all = RankRecord::Clock::now() - begin;
  ASSERT_EQ(times.num_steps, 1);
  EXPECT_GE(times.sum.communication, 0.02);
  // No moment counts twice: data has none of communication's time.
  EXPECT_LE(times.sum.total(), all.count());
}

TEST(StepClock, WhatABackwardTakesBehindItsLastGradientIsCommunication) {
  const auto times = times_of([] {
    auto& record = RankRecord::of_this_thread();
    const PhaseScope forward(StepPhase::kForward);
    {
      const PhaseScope backward(StepPhase::kBackward);
      std::this_thread::sleep_for(10ms);
      record.note_gradient();
      std::this_thread::sleep_for(20ms);
    }
    record.note_update();
  });
  EXPECT_GE(times.sum.backward, 0.01);
  EXPECT_GE(times.sum.communication, 0.02);
}

/// A device whose clock is controlled by the test.
class PretendMarks final : public DeviceMarks {
 public:
  struct Device {
    double now = 0;
    /// Marks up to this time were passed.
    double passed = 1e9;
    bool takes_marks = true;
    int num_marks = 0;
  };
  explicit PretendMarks(Device& device) : device_(device) {}
  bool leave() override {
    EXPECT_TRUE(device_.takes_marks);
    ++device_.num_marks;
    marks_.push_back(device_.now);
    return true;
  }
  std::optional<double> take() override {
    if (marks_.empty() || marks_.front() > device_.passed) {
      return std::nullopt;
    }
    const double before = std::exchange(taken_, marks_.front());
    marks_.pop_front();
    return before < 0 ? 0 : taken_ - before;
  }

 private:
  Device& device_;
  std::deque<double> marks_;
  double taken_ = -1;
};

/// 1 s of data, 2 of a forward, 3 of a backward and 4 of waiting in it, 5 of an
/// optimizer.
void one_step_on(PretendMarks::Device& device) {
  auto& record = RankRecord::of_this_thread();
  {
    const PhaseScope data(StepPhase::kData);
    device.now += 1;
  }
  {
    const PhaseScope forward(StepPhase::kForward);
    device.now += 2;
  }
  {
    const PhaseScope backward(StepPhase::kBackward);
    device.now += 3;
    record.note_last_gradient();
    device.now += 4;
  }
  const PhaseScope optimizer(StepPhase::kOptimizer);
  record.note_update();
  device.now += 5;
}

TEST(StepClock, OfADeviceCountsWhatItSpendsBetweenMarks) {
  PretendMarks::Device device;
  const auto times = times_of([&] {
    RankRecord::of_this_thread().follow(
        [&] { return std::make_unique<PretendMarks>(device); });
    for (int step = 0; step < 3; ++step) {
      one_step_on(device);
    }
  });
  ASSERT_EQ(times.num_steps, 3);
  for (const auto& step : times.last) {
    EXPECT_EQ(step.data, 1);
    EXPECT_EQ(step.forward, 2);
    EXPECT_EQ(step.backward, 3);
    EXPECT_EQ(step.communication, 4);
    EXPECT_EQ(step.optimizer, 5);
    EXPECT_EQ(step.other, 0);
  }
}

TEST(StepClock, OfADeviceLeavesOutStepsThatItHasNotEnded) {
  PretendMarks::Device device;
  std::thread([&] {
    auto& record = RankRecord::of_this_thread();
    record.follow([&] { return std::make_unique<PretendMarks>(device); });
    device.passed = 16; // One step takes 15.
    one_step_on(device);
    one_step_on(device);
    EXPECT_EQ(record.step_times().num_steps, 1);
    device.passed = 30;
    EXPECT_EQ(record.step_times().num_steps, 2);
    EXPECT_EQ(record.step_times().sum.forward, 4);
    // The next run is on the host.
    record.follow({});
    one_step(0ms, true);
    EXPECT_EQ(record.step_times().num_steps, 3);
  }).join();
}

TEST(StepClock, OfADeviceCountsACapturedStepAsOnePart) {
  PretendMarks::Device device;
  const auto times = times_of([&] {
    auto& record = RankRecord::of_this_thread();
    record.follow([&] { return std::make_unique<PretendMarks>(device); });
    for (int step = 0; step < 2; ++step) {
      const PhaseScope captured(StepPhase::kCaptured);
      // As while a graph is recorded.
      device.takes_marks = false;
      one_step_on(device);
      device.takes_marks = true;
    }
  });
  ASSERT_EQ(times.num_steps, 2);
  EXPECT_EQ(times.sum.captured, 30);
  EXPECT_EQ(times.sum.total(), 30);
}

TEST(StepClock, OfANewRunBeginsWithItsFirstStep) {
  const auto times = times_of([] {
    one_step(0ms, true);
    // A batch was requested, but there was none: the run has ended.
    { const PhaseScope data(StepPhase::kData); }
    RankRecord::of_this_thread().follow({});
    RankRecord::of_this_thread().note_update();
  });
  EXPECT_EQ(times.num_steps, 1);
}

TEST(StepClock, DescribesWhatLimitsARun) {
  StepTimes times;
  EXPECT_EQ(times.summary(), "");
  times.num_steps = 100;
  times.sum.data = 0.41;
  times.sum.forward = 0.2;
  times.sum.backward = 0.39;
  EXPECT_EQ(
      times.summary(),
      "100 steps of 10 ms: 41 % waits for data, 39 % backward, 20 % forward\n"
      "41 % of the step waits for data: raise num_workers, or make the dataset "
      "faster");
  times.sum.data = 0;
  EXPECT_THAT(times.summary(), HasSubstr("computing takes most of the step"));
  times.sum.communication = 0.5;
  EXPECT_THAT(
      times.summary(), HasSubstr("46 % of the step waits for other ranks: "));
  times.sum.other = 3;
  EXPECT_THAT(
      times.summary(),
      HasSubstr("73 % of the step goes into user code: look for"));
}

} // namespace
} // namespace accelerate
