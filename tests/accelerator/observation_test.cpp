// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "support/other_locale.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::read_file;
using ::testing::StartsWith;
using testing::TempDir;
using ::testing::ThrowsMessage;

struct Steps : Tracker {
  std::string name() const override { return "steps"; }
  void log(const TrackedValues& values, int64_t step) override {
    seen.emplace_back(step, *values.front().second.number());
  }
  void mark(const std::string& event, int64_t step) override {
    marks.push_back(event + " " + std::to_string(step));
  }
  void log_images(
      const std::string&,
      const std::vector<TrackedImage>& images,
      int64_t) override {
    pictures = images;
  }
  void log_histogram(
      const std::string&,
      std::span<const double> values,
      int64_t) override {
    spread.assign(values.begin(), values.end());
  }
  void resume(int64_t step) override { resumed_at = step; }
  std::string state() const override { return "here"; }
  void load_state(const std::string& state) override { loaded = state; }

  std::vector<std::pair<int64_t, double>> seen;
  std::vector<std::string> marks;
  std::vector<TrackedImage> pictures;
  std::vector<double> spread;
  std::string loaded;
  int64_t resumed_at = -1;
};

TEST(Trackers, LogTheMainProcessAndResumeFromACheckpoint) {
  const TempDir folder;
  run_ranks(2, [&](ProcessGroup group) {
    const auto train = [&](const std::shared_ptr<Steps>& steps, bool resume) {
      Accelerator accelerator({.cpu = true, .process_group = group});
      accelerator.init_trackers(
          "sky", {.log_with = {steps}, .logging_dir = folder.path()});
      auto net = accelerator.prepare(torch::nn::Linear(2, 1));
      if (resume) {
        accelerator.load_state(folder.path() / "saved");
      }
      const auto value = torch::tensor(0.5 + accelerator.process_index());
      accelerator.log({{"loss", value}});
      accelerator.log({{"loss", value}});
      if (!resume) {
        accelerator.save_state(folder.path() / "saved");
        accelerator.log({{"loss", value}});
      }
      EXPECT_EQ(
          &accelerator.get_tracker("steps") == steps.get(),
          accelerator.is_main_process());
    };
    auto first = std::make_shared<Steps>();
    auto again = std::make_shared<Steps>();
    train(first, false);
    train(again, true);
    if (group.rank() == 0) {
      EXPECT_THAT(
          first->seen,
          ElementsAre(std::pair(0, 0.5), std::pair(1, 0.5), std::pair(2, 0.5)));
      EXPECT_THAT(first->marks, ElementsAre("checkpoint 1"));
      EXPECT_THAT(
          again->seen, ElementsAre(std::pair(2, 0.5), std::pair(3, 0.5)));
      EXPECT_EQ(again->resumed_at, 2);
      EXPECT_EQ(again->loaded, "here");
    } else {
      EXPECT_TRUE(first->seen.empty() && again->seen.empty());
    }
    // A run without trackers resumes from it, and the reverse.
    Accelerator untracked({.cpu = true, .process_group = group});
    auto net = untracked.prepare(torch::nn::Linear(2, 1));
    untracked.load_state(folder.path() / "saved");
    untracked.save_state(folder.path() / "untracked");
    Accelerator tracked({.cpu = true, .process_group = group});
    tracked.init_trackers("sky", {.logging_dir = folder.path()});
    auto other = tracked.prepare(torch::nn::Linear(2, 1));
    tracked.load_state(folder.path() / "untracked");
  });
  EXPECT_THAT(
      read_file(folder.path() / "sky" / "metrics.jsonl"),
      HasSubstr("\"num_processes\":2"));
}

TEST(Trackers, EveryRankWritesItsStepTimes) {
  const TempDir folder;
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    accelerator.init_trackers("sky", {.logging_dir = folder.path()});
    torch::nn::Linear model(2, 1);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = accelerator.prepare(model, optimizer);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(net(torch::ones({4, 2})).sum());
      opt.step();
      opt.zero_grad();
    }
  });
  for (const char* name : {"rank_0.jsonl", "rank_1.jsonl"}) {
    const auto lines = read_file(folder.path() / "sky" / "ranks" / name);
    EXPECT_THAT(lines, HasSubstr(R"("step":3,"values":{"steps":3)"));
    EXPECT_THAT(lines, HasSubstr(R"("backward":)"));
    EXPECT_THAT(lines, HasSubstr(R"("event":"finish")"));
  }
}

TEST(Trackers, LogImagesAndHistogramsFromTensors) {
  const TempDir folder;
  Accelerator accelerator({.cpu = true});
  auto steps = std::make_shared<Steps>();
  accelerator.init_trackers(
      "sky", {.log_with = {steps}, .logging_dir = folder.path()});
  accelerator.log_images("grey", torch::rand({2, 1, 4, 6}));
  ASSERT_EQ(steps->pictures.size(), 2U);
  EXPECT_EQ(steps->pictures[0].width, 6);
  EXPECT_EQ(steps->pictures[0].height, 4);
  auto pixels = torch::randint(256, {3, 5, 7}, torch::kByte);
  accelerator.log_images("colour", pixels);
  const auto path = folder.write("picture.png", steps->pictures.at(0).png);
  EXPECT_TRUE(read_image(path).equal(pixels));
  EXPECT_THROW(
      accelerator.log_images("odd", torch::rand({2, 4, 4})), UsageError);
  accelerator.log_histogram("weights", torch::arange(3));
  EXPECT_THAT(steps->spread, ElementsAre(0, 1, 2));
}

TEST(Trackers, RejectTensorsThatAreNotASingleNumberByName) {
  const TempDir folder;
  const auto complex = torch::ones({}, torch::kComplexFloat);
  const auto refused = [](const std::string& text) {
    return ThrowsMessage<UsageError>(StartsWith(text));
  };
  // Also on a rank that keeps nothing, so that ranks behave alike.
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    auto steps = std::make_shared<Steps>();
    accelerator.init_trackers(
        "sky", {.log_with = {steps}, .logging_dir = folder.path()});
    EXPECT_THAT(
        [&] {
          accelerator.log({{"two", torch::ones({2})}});
        },
        refused("[log] 'two' is a tensor of shape [2], expected one real"));
    EXPECT_THAT(
        [&] {
          accelerator.log({{"none", at::Tensor()}});
        },
        refused("[log] 'none' is an undefined tensor, expected one real"));
    EXPECT_THAT(
        [&] {
          accelerator.log({{"z", complex}});
        },
        refused("[log] 'z' is a complex tensor of shape []"));
    EXPECT_THAT(
        [&] { accelerator.log_histogram("z", complex); },
        refused("[log_histogram] 'z' is CPUComplexFloatType of shape []"));
    EXPECT_THAT(
        [&] { accelerator.log_histogram("none", {}); },
        refused("[log_histogram] 'none' is an undefined tensor"));
    EXPECT_THAT(
        [&] { accelerator.log_images("none", {}); },
        refused("[log_images] 'none' is an undefined tensor"));
    ProgressBar bar(1, {.enabled = false});
    EXPECT_THAT(
        [&] {
          bar.set_postfix({{"two", torch::ones({1, 2})}});
        },
        refused("[set_postfix] 'two' is a tensor of shape [1, 2]"));
    EXPECT_TRUE(steps->seen.empty());
    accelerator.log({{"one", torch::ones({1, 1})}});
    EXPECT_EQ(steps->seen.size(), group.rank() == 0 ? 1U : 0U);
  });
}

TEST(Trackers, SecondCallFinishesThoseOfTheFirst) {
  const TempDir folder;
  Accelerator accelerator({.cpu = true});
  for (int i = 0; i < 2; ++i) {
    accelerator.init_trackers("sky", {.logging_dir = folder.path()});
    accelerator.log({{"loss", 1}});
  }
  {
    Accelerator other({.cpu = true});
    EXPECT_THROW(
        other.init_trackers("sky", {.logging_dir = folder.path()}), UsageError);
  }
  accelerator.end_training();
  Accelerator later({.cpu = true});
  later.init_trackers("sky", {.logging_dir = folder.path()});
  std::istringstream lines(read_file(folder.path() / "sky" / "metrics.jsonl"));
  std::string events;
  for (std::string line; std::getline(lines, line);) {
    events += nlohmann::json::parse(line).value("event", "log") + ' ';
  }
  EXPECT_EQ(events, "start log finish start log finish start ");
}

TEST(Trackers, WarnAboutValuesLoggedAfterTheEnd) {
  const TempDir folder;
  Accelerator accelerator({.cpu = true});
  accelerator.init_trackers("sky", {.logging_dir = folder.path()});
  accelerator.end_training();
  ::testing::internal::CaptureStderr();
  accelerator.log_histogram("weights", torch::ones(2));
  accelerator.log({{"loss", 1}});
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      said,
      StartsWith(
          "[log_histogram] 'weights' and all later values are not logged"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

int64_t calls_of(const Profile& profile, const std::string& name) {
  for (const auto& row : profile.operators()) {
    if (row.name == name) {
      return row.calls;
    }
  }
  return 0;
}

TEST(Profile, RecordsTheScheduledStepsAndWritesTraces) {
  const TempDir folder;
  Accelerator accelerator({.cpu = true});
  auto net = accelerator.prepare(torch::nn::Linear(8, 8));
  auto profile = accelerator.profile(
      {.schedule =
           ProfileSchedule{
               .skip_first = 1,
               .wait = 1,
               .warmup = 1,
               .active = 2,
               .repeat = 2},
       .profile_memory = true,
       .output_trace_dir = folder.path() / "traces"});
  for (int step = 0; step < 12; ++step) {
    auto loss = net(torch::ones({4, 8})).sum();
    accelerator.backward(loss);
    if (step == 4) {
      EXPECT_TRUE(profile.traces().empty());
    }
    profile.step();
  }
  EXPECT_EQ(calls_of(profile, "aten::addmm"), 2);
  for (const auto& row : profile.operators()) {
    EXPECT_LE(row.self_ms, row.total_ms) << row.name;
  }
  EXPECT_THAT(profile.table(), HasSubstr("self ms"));
  ASSERT_THAT(
      profile.traces(),
      ElementsAre(
          folder.path() / "traces" / "profile_0.json",
          folder.path() / "traces" / "profile_0_1.json"));
  const auto trace = read_file(profile.traces()[0]);
  EXPECT_THAT(trace, HasSubstr("\"traceEvents\""));
  EXPECT_THAT(trace, HasSubstr("aten::addmm"));
  // Includes what autograd calls.
  EXPECT_THAT(trace, HasSubstr("AddmmBackward0"));
  EXPECT_THAT(trace, HasSubstr("[memory]"));
}

// The memory at each time, by the part of the step that allocated it.
std::vector<nlohmann::json> memory_of(const std::filesystem::path& trace) {
  std::vector<nlohmann::json> moments;
  const auto content = nlohmann::json::parse(read_file(trace));
  for (const auto& event : content.at("traceEvents")) {
    if (event.at("ph") == "C" && event.at("name") == "memory of cpu") {
      moments.push_back(event.at("args"));
    }
  }
  return moments;
}

TEST(Profile, ShowsMemoryOverTimeByPartOfTheStep) {
  const testing::OtherLocale other; // times must be JSON numbers nevertheless
  const TempDir folder;
  Accelerator accelerator({.cpu = true});
  // Weights of 1 MiB, an input of 2 MiB.
  torch::nn::Linear model(torch::nn::LinearOptions(512, 512).bias(false));
  optim::AdamW adamw(model->parameters());
  auto [net, opt] = accelerator.prepare(model, adamw);
  auto profile = accelerator.profile(
      {.profile_memory = true, .output_trace_dir = folder.path()});
  const auto input = torch::ones({1024, 512});
  accelerator.backward(net(input).sum());
  opt.step();
  profile.stop();
  ASSERT_EQ(profile.traces().size(), 1U);
  const auto moments = memory_of(profile.traces()[0]);
  ASSERT_FALSE(moments.empty());
  const auto most = [&](const char* part) {
    int64_t bytes = 0;
    for (const auto& moment : moments) {
      bytes = std::max(bytes, moment.at(part).get<int64_t>());
    }
    return bytes;
  };
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto& end = moments.back();
  EXPECT_GE(end.at("elsewhere"), 2 * kMiB); // The input.
  EXPECT_GE(most("forward"), 2 * kMiB);     // The output,
  EXPECT_LT(end.at("forward"), kMiB);       // which the graph let go.
  EXPECT_GE(end.at("backward"), kMiB);      // The gradient.
  EXPECT_GE(end.at("optimizer"), 2 * kMiB); // Two moments.
  for (const auto& row : profile.operators()) {
    EXPECT_THAT(row.name, Not(HasSubstr("accelerate::forward")));
    EXPECT_THAT(row.name, Not(HasSubstr("[memory]")));
  }
}

TEST(Profile, RecordsEverythingWithoutASchedule) {
  Accelerator accelerator({.cpu = true});
  const auto weight = torch::ones({8, 8});
  auto profile = accelerator.profile();
  EXPECT_THROW(static_cast<void>(accelerator.profile()), UsageError);
  weight.mm(weight);
  weight.mm(weight);
  profile.stop();
  weight.mm(weight);
  EXPECT_EQ(calls_of(profile, "aten::mm"), 2);
  EXPECT_THAT(profile.table(1), Not(HasSubstr("aten::ones")));
  EXPECT_TRUE(profile.traces().empty());
  EXPECT_THROW(
      static_cast<void>(
          accelerator.profile({.schedule = ProfileSchedule{.active = 0}})),
      UsageError);
  // After one has ended, the next can start.
  const auto next = accelerator.profile();
}

TEST(Profile, ThrowsIfATraceCannotBeWritten) {
  const TempDir folder;
  std::ofstream(folder.path() / "file") << "in the way";
  Accelerator accelerator({.cpu = true});
  auto profile = accelerator.profile(
      {.output_trace_dir = folder.path() / "file" / "traces"});
  EXPECT_THROW(profile.stop(), SystemError);
}

} // namespace
} // namespace accelerate
