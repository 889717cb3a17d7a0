// SPDX-License-Identifier: Apache-2.0
// What looking on costs a step of 1 ms: its clock, its numbered collectives and
// a line of metrics for each step, while a watchdog is awake; beside the same
// loop without them. Without torch.
//
// Prints one JSON line per case: microseconds per step of both (medians of
// blocks that alternate), their ratio, and what is added in percent of 1 ms:
// the median of the differences.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "accelerate/observe/tracking.h"
#include "core/observe/rank_record.h"
#include "core/observe/watchdog.h"

namespace {

using namespace accelerate;

constexpr double kStepMicroseconds = 1000;
constexpr int kStepsPerBlock = 1;
constexpr int kBlocks = 2001;

/// Computes, and reads no clock: both loops do the same work.
uint64_t compute(int64_t num_rounds, uint64_t seed) {
  for (int64_t i = 0; i < num_rounds; ++i) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
  }
  return seed;
}

/// A folder that goes with the object.
struct RunFolder {
  RunFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "observation-XXXXXX")
            .string();
    path = mkdtemp(name.data()) != nullptr ? name : ".";
  }
  ~RunFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path / "run", ignored);
    std::filesystem::remove(path, ignored);
  }
  std::filesystem::path path;
};

class Loop {
 public:
  Loop(const Membership& membership, Trackers& trackers)
      : membership_(membership), trackers_(trackers) {}

  /// Chooses the number of rounds so that a bare step takes 1 ms.
  void calibrate() {
    constexpr int64_t kTrial = 1'000'000;
    num_rounds_ = kTrial;
    double least = microseconds_per_step([this] { bare(); });
    for (int trial = 0; trial < 5; ++trial) {
      least = std::min(least, microseconds_per_step([this] { bare(); }));
    }
    num_rounds_ = static_cast<int64_t>(kTrial * kStepMicroseconds / least);
  }
  void bare() { seed_ = compute(num_rounds_, seed_); }
  /// As a step of DDP has them: a batch, a forward, a backward with 32
  /// gradients and the exchange that compares it, a reduced loss, an update.
  void observed(bool tracks) {
    auto& record = RankRecord::of_this_thread();
    { const PhaseScope data(StepPhase::kData); }
    {
      const PhaseScope forward(StepPhase::kForward);
      bare();
    }
    {
      const PhaseScope backward(StepPhase::kBackward);
      for (int i = 0; i < 32; ++i) {
        record.note_gradient();
      }
    }
    collective();
    {
      const TopicScope topic("reduce mean Float[1]");
      collective();
    }
    {
      const PhaseScope optimizer(StepPhase::kOptimizer);
      record.note_update();
    }
    if (tracks) {
      trackers_.log({{"loss", 0.123456789}, {"lr", 1e-3}});
    }
  }
  void measure(const char* name, bool tracks) {
    std::vector<double> without;
    std::vector<double> with;
    std::vector<double> added;
    for (int block = -1; block < kBlocks; ++block) {
      const double bare_time = microseconds_per_step([this] { bare(); });
      const double time = microseconds_per_step([&] { observed(tracks); });
      if (block >= 0) { // The first block warms up.
        without.push_back(bare_time);
        with.push_back(time);
        added.push_back(time - bare_time);
      }
    }
    std::printf(
        "{\"bench\": \"observation\", \"case\": \"%s\", \"ours\": %.2f, "
        "\"peer\": %.2f, \"unit\": \"us/step\", \"ratio\": %.4f, "
        "\"added_percent\": %.2f}\n",
        name,
        median(with),
        median(without),
        median(without) / median(with),
        median(added) / kStepMicroseconds * 100);
  }
  uint64_t result() const { return seed_; }

 private:
  void collective() {
    const ObservedOperation operation{
        "all_reduce", ++number_, "Float", 2, {1024, 1024}};
    {
      const OperationScope start(
          StepPhase::kCommunication, &membership_, operation);
    }
    const OperationScope finish(
        StepPhase::kCommunication, &membership_, operation);
  }
  static double microseconds_per_step(const std::function<void()>& step) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kStepsPerBlock; ++i) {
      step();
    }
    const std::chrono::duration<double, std::micro> time =
        std::chrono::steady_clock::now() - begin;
    return time.count() / kStepsPerBlock;
  }
  static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  const Membership& membership_;
  Trackers& trackers_;
  int64_t num_rounds_ = 0;
  uint64_t number_ = 0;
  uint64_t seed_ = 1;
};

} // namespace

int main() {
  auto made = std::make_unique<Membership>();
  made->threshold = std::chrono::seconds(10);
  const auto& membership = Watchdog::instance().join(std::move(made));
  const RunFolder folder;
  Trackers trackers("run", {.logging_dir = folder.path});
  Loop loop(membership, trackers);
  loop.calibrate();
  loop.measure("step clock, 2 collectives", false);
  loop.measure("step clock, 2 collectives, JSON lines", true);
  // What was computed is used, so that it is computed.
  return loop.result() == 0 ? 1 : 0;
}
