// SPDX-License-Identifier: Apache-2.0
#include "training/comm/hang_exchange.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/base/background_thread.h"
#include "core/base/str.h"
#include "training/comm/quiet_log.h"

namespace accelerate {
namespace {

using namespace std::chrono_literals;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How long a rank may take to read its own stack.
constexpr auto kAnswerPatience = 2000ms;
constexpr auto kBetweenLooks = 50ms;
// Limits the load of the store, which may serve a thousand ranks.
constexpr auto kBetweenQuestions = 1000ms;
constexpr const char* kPrefix = "hangs";
// The key of a query's outcome.
constexpr const char* kSaid = "said";
constexpr const char* kSaidOfSlow = "said, and a rank is slow";
constexpr const char* kNotSaid = "not said";

bool is_between_processes(const StorePtr& store) {
  c10d::Store* inner = store.get();
  StorePtr underneath;
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(inner)) {
    underneath = prefixed->getUnderlyingNonPrefixStore();
    inner = underneath.get();
  }
  return dynamic_cast<c10d::TCPStore*>(inner) != nullptr ||
         dynamic_cast<c10d::FileStore*>(inner) != nullptr;
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

} // namespace

std::shared_ptr<std::atomic<int64_t>> uncounted_collectives(
    const GroupPtr& group) {
  static std::mutex mutex;
  static std::map<c10d::ProcessGroup*, std::weak_ptr<std::atomic<int64_t>>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& known = all[group.get()];
  auto count = known.lock();
  if (!count) {
    count = std::make_shared<std::atomic<int64_t>>(0);
    known = count;
  }
  return count;
}

// Each device may have its own backend, but a group counts only on its default
// one. Backends are accessed through the group, because a weak pointer to a
// backend would keep its sockets open after the group's last owner has released
// them.
std::function<std::optional<uint64_t>()> collective_counter(
    const GroupPtr& group) {
  std::set<c10d::Backend*> backends;
  for (const auto& device : group->getDeviceTypes()) {
    backends.insert(group->getBackend(device.type()).get());
  }
  const auto counts = std::make_shared<std::atomic<bool>>(!backends.empty());
  return [weak = c10::weak_intrusive_ptr<c10d::ProcessGroup>(group),
          backends,
          uncounted = uncounted_collectives(group),
          counts]() -> std::optional<uint64_t> {
    const auto locked = *counts ? weak.lock() : nullptr;
    if (!locked) {
      return std::nullopt;
    }
    auto sum = static_cast<uint64_t>(uncounted->load());
    try {
      for (c10d::Backend* backend : backends) {
        sum += backend->getSequenceNumberForGroup();
      }
    } catch (const std::exception&) {
      *counts = false; // tried only once, because the exception costs more
                       // than a collective
    }
    return *counts ? std::optional(sum) : std::nullopt;
  };
}

/// The state of the thread. It may outlive the exchange while the thread waits
/// for the store.
struct HangExchange::ThreadState {
  /// A separate connection; null if the store is gone.
  StorePtr store;
  Membership* membership = nullptr;
  /// The number of the next query.
  int64_t round = 0;
  /// The rank that hosts the store.
  SilentRank holder = {};
  /// An answer of this rank to a query whose outcome is not known yet.
  struct Answer {
    int64_t round = 0;
    std::optional<Watchdog::Clock::time_point> since = {};
    bool was_due = false;
    Watchdog::Clock::time_point end = {};
  };
  std::optional<Answer> answered = {};
  std::mutex mutex;
  std::condition_variable changed;
  bool is_stopping = false;
  bool is_done = false;
  /// The process that started the thread. Forked children have the object, but
  /// not the thread.
  const pid_t owner = getpid();

  bool pause(std::chrono::milliseconds time) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, time, [this] { return is_stopping; });
    return !is_stopping;
  }
  void stop() {
    const std::lock_guard<std::mutex> lock(mutex);
    is_stopping = true;
    changed.notify_all();
  }
  void run() {
    try {
      answer_queries();
    } catch (const std::exception&) {
      // The store is gone together with the rank that hosts it. Collectives
      // will report this.
    }
    membership->asking_since = 0;
    const std::lock_guard<std::mutex> lock(mutex);
    is_done = true;
    changed.notify_all();
  }
  /// Called before others can wait for this rank, so that they can name it.
  /// Afterwards the rank answers queries.
  void sign_in(const StorePtr& shared_store);
  void answer_queries();
  void look(c10d::Store& store);
  void read_verdict(c10d::Store& store);
  void print(c10d::Store& store);
  void begin_asking() const {
    membership->asking_since =
        Watchdog::Clock::now().time_since_epoch().count();
  }
  std::chrono::milliseconds until_next() const;
  /// How long reports are collected.
  std::chrono::milliseconds print_patience() const;
};

namespace {

std::string key(const char* what, int64_t round) {
  return str_cat(what, '/', round);
}
std::string key(const char* what, int64_t round, int rank) {
  return str_cat(what, '/', round, '/', rank);
}

SilentRank silent_rank(c10d::Store& store, int rank) {
  SilentRank silent{rank};
  const std::string who = key("who", rank);
  if (store.check({who})) {
    std::istringstream text(text_of(store.get(who)));
    text >> silent.pid >> silent.host;
  }
  return silent;
}

// All exchange threads of this process, to be ended with it.
struct OpenExchanges {
  static OpenExchanges& instance() {
    static auto* exchanges = new OpenExchanges;
    return *exchanges;
  }
  std::mutex mutex;
  std::map<const c10d::ProcessGroup*, std::weak_ptr<HangExchange>> open;
  std::vector<std::function<void()>> ends;
};

// Threads must stop using the store before static objects are destroyed.
void end_threads() {
  std::vector<std::function<void()>> ends;
  {
    auto& exchanges = OpenExchanges::instance();
    const std::lock_guard<std::mutex> lock(exchanges.mutex);
    ends = exchanges.ends;
  }
  for (const auto& end : ends) {
    end();
  }
}

} // namespace

void HangExchange::ThreadState::sign_in(const StorePtr& shared_store) {
  const QuietLog quiet;
  begin_asking();
  try {
    // Uses a separate connection, because the group's own store may contain the
    // server, which ends with the group. It is not made on the thread:
    // resolving host names reads the environment, which user code may change
    // concurrently.
    store =
        c10::make_intrusive<c10d::PrefixStore>(kPrefix, shared_store->clone());
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    store->set(
        key("who", membership->rank), bytes_of(str_cat(getpid(), ' ', host)));
    while (store->check({key("ask", round)})) {
      ++round; // skip queries of an earlier group in this process
    }
  } catch (const std::exception&) {
    // The store is gone together with the rank that hosts it. Collectives will
    // report this.
    store.reset();
  }
}

// The time until this rank must report, if that is before the next poll.
std::chrono::milliseconds HangExchange::ThreadState::until_next() const {
  const auto interval = Watchdog::interval_for(*membership, kBetweenQuestions);
  const auto since = Watchdog::instance().waits_since(*membership);
  if (!since || membership->threshold.count() == 0) {
    return interval;
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      *since + membership->threshold - Watchdog::Clock::now());
  return left <= 0ms ? interval : std::min(interval, left + 1ms);
}

void HangExchange::ThreadState::answer_queries() {
  if (!store) {
    return;
  }
  do {
    look(*store);
  } while (pause(until_next()));
}

void HangExchange::ThreadState::look(c10d::Store& store) {
  auto& watchdog = Watchdog::instance();
  // A lost connection needs no log message here.
  const QuietLog quiet;
  begin_asking();
  if (holder.pid == 0) {
    holder = silent_rank(store, 0);
    watchdog.set_store_holder(*membership, holder);
  }
  read_verdict(store);
  const bool is_due = !answered && watchdog.is_due(*membership);
  if (is_due) {
    store.set(key("ask", round), bytes_of("1"));
  }
  const bool is_round = is_due || store.check({key("ask", round)});
  membership->asking_since = 0;
  if (!is_round) {
    return;
  }
  const auto report = watchdog.look(*membership);
  answered = Answer{
      round,
      watchdog.waits_since(*membership),
      report.waits && watchdog.is_due(*membership),
      Watchdog::Clock::now() + print_patience() + kAnswerPatience};
  store.set(key("report", round, membership->rank), bytes_of(encode(report)));
  watchdog.note_queried(*membership);
  if (is_due && store.add(key("printer", round), 1) == 1) {
    print(store);
  }
  ++round;
}

// A rank that the report does not name makes its own query later, because it
// may have started to wait after the others had finished.
void HangExchange::ThreadState::read_verdict(c10d::Store& store) {
  if (!answered) {
    return;
  }
  const std::string verdict = key("verdict", answered->round);
  if (store.check({verdict})) {
    const auto said = text_of(store.get(verdict));
    if (said != kNotSaid && answered->since) {
      Watchdog::note_reported(
          *membership, *answered->since, false, said == kSaid);
    } else if (answered->was_due) {
      Watchdog::instance().note_nothing_to_report(*membership);
    }
    answered.reset();
  } else if (Watchdog::Clock::now() > answered->end) {
    answered.reset(); // the rank that would have reported is gone
  }
}

std::chrono::milliseconds HangExchange::ThreadState::print_patience() const {
  return Watchdog::interval_for(*membership, kBetweenQuestions) +
         kAnswerPatience;
}

void HangExchange::ThreadState::print(c10d::Store& store) {
  auto& watchdog = Watchdog::instance();
  std::set<int> missing;
  for (int rank = 0; rank < membership->world_size; ++rank) {
    missing.insert(rank);
  }
  std::vector<RankReport> reports;
  const auto end = Watchdog::Clock::now() + print_patience();
  do {
    std::erase_if(missing, [&](int rank) {
      const std::string answer = key("report", round, rank);
      if (!store.check({answer})) {
        return false;
      }
      reports.push_back(decode_report(text_of(store.get(answer))));
      return true;
    });
  } while (!missing.empty() && Watchdog::Clock::now() < end &&
           pause(kBetweenLooks));
  std::vector<SilentRank> silent;
  for (const int rank : missing) {
    silent.push_back(silent_rank(store, rank));
  }
  const double threshold =
      std::chrono::duration<double>(membership->threshold).count();
  const auto since = watchdog.waits_since(*membership);
  const bool says = since && watchdog.has_news(*membership, reports, silent);
  const bool is_final = !names_slow_rank(reports, threshold);
  store.set(
      key("verdict", round),
      bytes_of(
          !says      ? kNotSaid
          : is_final ? kSaid
                     : kSaidOfSlow));
  answered.reset();
  if (says) {
    Watchdog::say(describe_hang(reports, silent, threshold));
    Watchdog::note_reported(*membership, *since, true, is_final);
  } else {
    watchdog.note_nothing_to_report(*membership);
  }
}

std::shared_ptr<HangExchange> HangExchange::watch(
    const GroupPtr& group,
    std::chrono::milliseconds threshold) {
  const auto store = group->getStore();
  if (!store || group->getSize() == 1 || !is_between_processes(store)) {
    return nullptr;
  }
  auto& exchanges = OpenExchanges::instance();
  const std::lock_guard<std::mutex> lock(exchanges.mutex);
  auto& known = exchanges.open[group.get()];
  auto exchange = known.lock();
  if (!exchange) {
    exchange = std::make_shared<HangExchange>(group, threshold);
    known = exchange;
    exchanges.ends.push_back([weak = std::weak_ptr(exchange->thread_)] {
      const auto thread = weak.lock();
      if (!thread || thread->owner != getpid()) {
        return;
      }
      thread->stop();
      std::unique_lock<std::mutex> ending(thread->mutex);
      // Do not wait for a store that does not answer.
      thread->changed.wait_for(ending, 500ms, [&] { return thread->is_done; });
    });
  }
  return exchange;
}

HangExchange::HangExchange(
    const GroupPtr& group,
    std::chrono::milliseconds threshold)
    : thread_(std::make_shared<ThreadState>()) {
  auto membership = std::make_unique<Membership>();
  membership->rank = group->getRank();
  membership->world_size = group->getSize();
  membership->threshold = threshold;
  membership->num_collectives = collective_counter(group);
  membership_ = &Watchdog::instance().join(std::move(membership));
  thread_->membership = membership_;
  thread_->sign_in(group->getStore());
  [[maybe_unused]] static const int registered = std::atexit(end_threads);
  background_thread([thread = thread_] { thread->run(); }).detach();
}

HangExchange::~HangExchange() {
  membership_->is_over = true;
  thread_->stop();
}

} // namespace accelerate
