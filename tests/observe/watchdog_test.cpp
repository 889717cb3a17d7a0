// SPDX-License-Identifier: Apache-2.0
// When a waiting rank is reported, and when not any more.
#include "core/observe/watchdog.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "core/observe/runtime_folder.h"
#include "support/subprocess.h"

namespace accelerate {
namespace {

using namespace std::chrono_literals;

class WatchdogTest : public ::testing::Test {
 protected:
  WatchdogTest() {
    auto own = std::make_unique<Membership>();
    own->world_size = 2;
    own->threshold = 1ms;
    membership_ = &watchdog_.join(std::move(own));
    RankRecord::of_this_thread().join(*membership_);
  }
  ~WatchdogTest() override { membership_->is_over = true; }
  bool becomes_due() {
    return testing::eventually(
        [this] { return watchdog_.is_due(*membership_); });
  }
  Watchdog::Clock::time_point since() {
    return watchdog_.waits_since(*membership_).value();
  }

  Watchdog& watchdog_ = Watchdog::instance();
  Membership* membership_ = nullptr;
};

RankReport report_of(int rank, bool waits, double seconds) {
  RankReport report;
  report.rank = rank;
  report.waits = waits;
  report.seconds = seconds;
  report.operation = waits ? "barrier" : "";
  report.phase = waits ? StepPhase::kCommunication : StepPhase::kUser;
  return report;
}

const auto kWaiting = report_of(0, true, 10);
const auto kSlow = report_of(1, false, 0);
const auto kMissing = report_of(1, false, 10);

TEST_F(WatchdogTest, ReportsAMissingRankOnce) {
  const PhaseScope waits(StepPhase::kCommunication);
  ASSERT_TRUE(becomes_due());
  EXPECT_TRUE(watchdog_.has_news(*membership_, {kWaiting, kMissing}, {}));
  Watchdog::note_reported(*membership_, since(), true, true);
  EXPECT_FALSE(watchdog_.is_due(*membership_));
}

TEST_F(WatchdogTest, ReportsASlowRankAgainWhenItHangs) {
  const PhaseScope waits(StepPhase::kCommunication);
  ASSERT_TRUE(becomes_due());
  EXPECT_TRUE(watchdog_.has_news(*membership_, {kWaiting, kSlow}, {}));
  Watchdog::note_reported(*membership_, since(), true, false);
  ASSERT_TRUE(becomes_due());
  EXPECT_FALSE(watchdog_.has_news(*membership_, {kWaiting, kSlow}, {}));
  EXPECT_TRUE(watchdog_.has_news(*membership_, {kWaiting, kMissing}, {}));
}

TEST_F(WatchdogTest, IsQuietForAsLongAsTheWaitButNotInTheNextOne) {
  {
    const PhaseScope waits(StepPhase::kCommunication);
    ASSERT_TRUE(becomes_due());
    // As if it had waited for an hour.
    Watchdog::note_reported(*membership_, since() - 1h, true, false);
    EXPECT_FALSE(watchdog_.is_due(*membership_));
  }
  const PhaseScope waits(StepPhase::kCommunication);
  EXPECT_TRUE(becomes_due());
}

// By then the environment must have been read: the program may change it from
// now on, and a concurrent read would crash.
TEST(Watchdog, CanBeAskedWhenARankHasJoined) {
  const auto folder = runtime_folder(system_env);
  const pid_t child = fork();
  if (child == 0) {
    Watchdog::instance().join(std::make_unique<Membership>());
    _exit(std::filesystem::exists(socket_of(folder, getpid())) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

} // namespace
} // namespace accelerate
