// SPDX-License-Identifier: Apache-2.0
// A background thread that reports where the ranks of a process are, during a
// hang or on request.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/process.h"
#include "core/base/internal.h"
#include "core/observe/report.h"
#include "core/observe/script_stack.h"

namespace accelerate {

/// What the watchdog knows about one rank of this process.
struct Membership {
  using Clock = std::chrono::steady_clock;

  int rank = 0;
  int world_size = 1;
  /// A key that all ranks of one run share if they are threads of this process.
  /// Empty if each rank has its own process.
  std::string threads_of = {};
  /// How long a rank waits in a collective before a hang is reported. 0
  /// disables reports.
  std::chrono::milliseconds threshold{0};
  /// Returns how many collectives the group has started, on any thread. Empty
  /// if they are not counted.
  std::function<std::optional<uint64_t>()> num_collectives = {};

  std::atomic<bool> is_over = false;
  /// The result of `num_collectives` at the last check, the time of that check,
  /// and the earliest time at which that count can have been reached.
  std::atomic<uint64_t> num_seen = 0;
  std::atomic<Clock::rep> looked_at = 0;
  std::atomic<Clock::rep> counted_at = 0;
  /// When the running query of other ranks through the store began. 0 if none
  /// runs. The store may never answer.
  std::atomic<Clock::rep> asking_since = 0;
  /// The start time of the last wait that was reported, by any rank.
  std::atomic<Clock::rep> reported_wait = 0;
  std::atomic<bool> has_spoken = false;
  /// Whether that report is final. A report that calls a rank slow is not.
  std::atomic<bool> is_final = true;
  /// Waits that began no later than `quiet_from` are not examined again before
  /// `quiet_until`, because there was nothing to report, or a rank was slow.
  std::atomic<Clock::rep> quiet_from = 0;
  std::atomic<Clock::rep> quiet_until = 0;
  std::atomic<bool> has_reported_data_wait = false;
};

/// Returns `option` if set, else the environment variable, else 10 seconds.
/// Throws `ConfigError`.
ACCELERATE_INTERNAL std::chrono::milliseconds hang_threshold(
    const std::optional<std::chrono::milliseconds>& option,
    const EnvLookup& env = system_env);

class ACCELERATE_INTERNAL Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  static Watchdog& instance();

  /// The returned object is never destroyed, because records point to it.
  Membership& join(std::unique_ptr<Membership> membership);

  /// The polling interval for timely reports. `longest` limits it for expensive
  /// checks.
  static std::chrono::milliseconds interval_for(
      const Membership& membership,
      std::chrono::milliseconds longest = std::chrono::milliseconds(500));
  /// Returns when this rank started to wait for others.
  std::optional<Clock::time_point> waits_since(const Membership& membership);
  /// Whether this rank has waited longer than its threshold, the wait has no
  /// final report, and no quiet time applies.
  bool is_due(const Membership& membership);
  /// Whether these reports show a hang of `membership` that was not reported
  /// yet. A reported wait is not reported again if a rank is only slow.
  bool has_news(
      const Membership& membership,
      const std::vector<RankReport>& reports,
      const std::vector<SilentRank>& silent);
  /// Records that the wait that began at `since` was reported.
  static void note_reported(
      Membership& membership,
      Clock::time_point since,
      bool by_this_rank,
      bool is_final);
  /// Records that other ranks were queried, but that the wait needs no report.
  /// They are queried again when the wait has lasted twice as long.
  void note_nothing_to_report(Membership& membership);
  /// Records that another rank has queried this one and will name it. If this
  /// rank waits for its data loader, it writes no separate report.
  void note_queried(Membership& membership);
  /// Sets the rank that hosts the store of the membership's run.
  void set_store_holder(const Membership& membership, SilentRank holder);
  RankReport look(const Membership& membership);
  /// The reports of all ranks of this process.
  std::vector<RankReport> look();
  /// Writes `message` to stderr with one call, so other output cannot split it.
  static void say(const std::string& message);

 private:
  struct Script {
    uint64_t call = 0;
    Clock::time_point since = {};
  };

  Watchdog() = default;
  void start();
  void run();
  void watch();
  static void set_quiet_time(Membership& membership, Clock::duration waited);
  void watch_script();
  void note_script(const std::optional<ScriptStack>& answer);
  static void watch_count(Membership& membership);
  void watch_threads(const std::string& threads_of);
  void watch_data(Membership& membership);
  void watch_store(Membership& membership);
  void watch_end(Membership& membership);
  std::vector<Membership*> memberships();

  std::mutex mutex_;
  std::vector<std::unique_ptr<Membership>> memberships_;
  std::map<const Membership*, SilentRank> store_holders_;
  /// The latest answer of the interpreter.
  std::optional<Script> script_;
  /// The PID of the process that started the thread. Differs in a forked child.
  int owner_ = 0;
};

} // namespace accelerate
