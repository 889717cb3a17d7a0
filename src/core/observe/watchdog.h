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

/// A rank of a run in this process.
struct Membership {
  using Clock = std::chrono::steady_clock;

  int rank = 0;
  int world_size = 1;
  /// Equal for ranks of one run that are threads of one process; empty if the
  /// others are in other processes.
  std::string threads_of = {};
  /// How long a collective waits before a message; 0: never report.
  std::chrono::milliseconds threshold{0};
  /// How many collectives the group has started, on any thread; empty if they
  /// are not counted.
  std::function<std::optional<uint64_t>()> num_collectives = {};

  std::atomic<bool> is_over = false;
  /// Their number at the last check, and the earliest time it can have been
  /// reached.
  std::atomic<uint64_t> num_seen = 0;
  std::atomic<Clock::rep> looked_at = 0;
  std::atomic<Clock::rep> counted_at = 0;
  /// Set while other ranks are queried through a store that may not answer: the
  /// start time.
  std::atomic<Clock::rep> asking_since = 0;
  /// The last wait that a message was written for, by this rank or another.
  std::atomic<Clock::rep> reported_wait = 0;
  std::atomic<bool> has_spoken = false;
  /// Whether that message called no rank slow, and so stays true.
  std::atomic<bool> is_final = true;
  /// A wait that began at the first time is not queried again until the second,
  /// because there was nothing to report, or a rank was slow.
  std::atomic<Clock::rep> quiet_from = 0;
  std::atomic<Clock::rep> quiet_until = 0;
  std::atomic<bool> has_reported_data_wait = false;
};

/// The option, or the variable, or 10 seconds. Throws `ConfigError`.
ACCELERATE_INTERNAL std::chrono::milliseconds hang_threshold(
    const std::optional<std::chrono::milliseconds>& option,
    const EnvLookup& env = system_env);

class ACCELERATE_INTERNAL Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  static Watchdog& instance();

  /// The object is never destroyed, because records point to it.
  Membership& join(std::unique_ptr<Membership> membership);

  /// The polling interval for timely messages; `longest` limits it for
  /// expensive checks.
  static std::chrono::milliseconds interval_for(
      const Membership& membership,
      std::chrono::milliseconds longest = std::chrono::milliseconds(500));
  /// Since when this rank has been waiting for others.
  std::optional<Clock::time_point> waits_since(const Membership& membership);
  /// Whether it has waited longer than the threshold, and no lasting message
  /// was written yet.
  bool is_due(const Membership& membership);
  /// Whether these ranks have something new to report about what `membership`
  /// waits in: a rank that was called slow is reported again only if it hangs.
  bool has_news(
      const Membership& membership,
      const std::vector<RankReport>& reports,
      const std::vector<SilentRank>& silent);
  /// A message was written about its wait since then, by this rank or another.
  static void note_reported(
      Membership& membership,
      Clock::time_point since,
      bool by_this_rank,
      bool is_final);
  /// Ranks were queried, but there was nothing to report about its wait. They
  /// are queried again when it has waited twice as long.
  void note_nothing_to_report(Membership& membership);
  /// Another rank will name this one in its message, so a loader that it waits
  /// for needs no message of its own.
  void note_asked(Membership& membership);
  /// The rank that hosts the store of the membership's run.
  void set_store_holder(const Membership& membership, SilentRank holder);
  RankReport look(const Membership& membership);
  /// The reports of all ranks of this process.
  std::vector<RankReport> look();
  /// Writes atomically with respect to other output.
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
  static void be_quiet_after(Membership& membership, Clock::duration waited);
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
  /// The process of the thread, not a forked child.
  int owner_ = 0;
};

} // namespace accelerate
