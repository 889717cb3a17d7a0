// SPDX-License-Identifier: Apache-2.0
// A thread that sleeps beside the ranks of a process, and tells where they are
// when they stand still, or when somebody asks.
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

#include "accelerate/export.h"
#include "accelerate/process.h"
#include "observe/report.h"
#include "observe/script_stack.h"

namespace accelerate {

/// A rank of a run, as its process has it.
struct Membership {
  using Clock = std::chrono::steady_clock;

  int rank = 0;
  int world_size = 1;
  /// Equal for ranks of one run that are threads of one process; empty where
  /// the others are elsewhere.
  std::string threads_of = {};
  /// How long a collective waits before a message; 0: for ever.
  std::chrono::milliseconds threshold{0};
  /// How many collectives the group has begun, whoever called them; nothing
  /// where nobody counts.
  std::function<std::optional<uint64_t>()> num_collectives = {};

  std::atomic<bool> is_over = false;
  /// How many there were at the last look, and since when at least.
  std::atomic<uint64_t> num_seen = 0;
  std::atomic<Clock::rep> looked_at = 0;
  std::atomic<Clock::rep> counted_at = 0;
  /// While others are asked by way of a store that may not answer: since when.
  std::atomic<Clock::rep> asking_since = 0;
  /// The last wait that a message was written for, and whether by this rank.
  std::atomic<Clock::rep> told_of = 0;
  std::atomic<bool> has_spoken = false;
  /// Whether that message called no rank slow, and so stays true.
  std::atomic<bool> is_settled = true;
  /// Of a wait that was there at the first time nobody is asked again until the
  /// second: there was nothing to say, or a rank was slow.
  std::atomic<Clock::rep> quiet_from = 0;
  std::atomic<Clock::rep> quiet_until = 0;
  std::atomic<bool> has_told_of_data = false;
};

/// What the option says, else the variable, else 10 seconds. Throws
/// `ConfigError`.
ACCELERATE_API std::chrono::milliseconds hang_threshold(
    const std::optional<std::chrono::milliseconds>& option,
    const EnvLookup& env = system_env);

class ACCELERATE_API Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  static Watchdog& instance();

  /// The object stays for ever, as records point to it.
  Membership& join(std::unique_ptr<Membership> membership);

  /// How often one should look, for a message in good time; `longest` is for
  /// looks that cost something.
  static std::chrono::milliseconds interval_for(
      const Membership& membership,
      std::chrono::milliseconds longest = std::chrono::milliseconds(500));
  /// Since when this rank waits for others.
  std::optional<Clock::time_point> waits_since(const Membership& membership);
  /// Whether it has waited for longer than the threshold, and nothing that
  /// stays true was said of it yet.
  bool is_due(const Membership& membership);
  /// Whether these ranks have something to say of what `membership` waits in: a
  /// rank that was called slow is news again only when it stands still.
  bool has_news(
      const Membership& membership,
      const std::vector<RankReport>& reports,
      const std::vector<SilentRank>& silent);
  /// Something was said of what it waited in since then, by this rank or
  /// another.
  static void note_told(
      Membership& membership,
      Clock::time_point since,
      bool by_this_rank,
      bool is_settled);
  /// Ranks were asked, and there was nothing to say of what it waits in. They
  /// are asked again when it has waited for twice as long.
  void note_nothing_told(Membership& membership);
  /// Another rank will name this one in its message: a loader that it waits
  /// for needs none of its own.
  void note_asked(Membership& membership);
  /// Who holds the store of the membership's run.
  void set_store_holder(const Membership& membership, SilentRank holder);
  RankReport look(const Membership& membership);
  /// All ranks of this process.
  std::vector<RankReport> look();
  /// Whole, beside what else is written.
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
  /// What the interpreter was in when it last answered.
  std::optional<Script> script_;
  /// The process that the thread lives in: not that of a child.
  int owner_ = 0;
};

} // namespace accelerate
