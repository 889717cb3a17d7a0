// SPDX-License-Identifier: Apache-2.0
#include "core/observe/watchdog.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>

#include "accelerate/error.h"
#include "core/base/background_thread.h"
#include "core/base/parse.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"
#include "core/base/variables.h"
#include "core/observe/job_socket.h"
#include "core/observe/native_stack.h"
#include "core/observe/rank_record.h"
#include "core/observe/script_stack.h"

namespace accelerate {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDefaultThreshold{10'000};
constexpr milliseconds kShortestInterval{50};
/// A store that takes longer is considered unresponsive.
constexpr milliseconds kStorePatience{3'000};
/// The time that ranks may take to exchange reports on a busy machine.
constexpr milliseconds kPeersPatience{3'000};

double seconds_from(Watchdog::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string own_host() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::shared_ptr<RankRecord> record_of(const Membership& membership) {
  std::shared_ptr<RankRecord> found;
  for (auto& record : RankRecord::all()) {
    if (record->membership() == &membership &&
        (!found || record->phase() == StepPhase::kCommunication)) {
      found = std::move(record);
    }
  }
  return found;
}

/// The background thread, and what wakes and ends it; see `stop_at_exit`.
struct Runner {
  std::thread thread;
  UniqueFile wake;
  /// Null if the socket cannot be created. Other processes then cannot query
  /// the ranks, but messages still appear.
  std::unique_ptr<JobSocket> socket;
  std::atomic<bool> is_stopping = false;
  int owner = 0;
};
Runner* runner = nullptr;

// Static objects that the thread uses are destroyed after this function.
void stop_at_exit() {
  if (runner != nullptr && runner->owner == getpid()) {
    runner->is_stopping = true;
    eventfd_write(runner->wake.get(), 1);
    runner->thread.join();
  }
}

} // namespace

milliseconds hang_threshold(
    const std::optional<milliseconds>& option,
    const EnvLookup& env) {
  if (option) {
    return *option;
  }
  const auto text = env(variables::kHangSeconds);
  if (!text || text->empty()) {
    return kDefaultThreshold;
  }
  const auto seconds = parse_number<double>(*text);
  constexpr double kMostSeconds = 1e6;
  if (!seconds || !(*seconds >= 0) || *seconds > kMostSeconds) {
    throw ConfigError(str_cat(
        "[hang] ",
        variables::kHangSeconds,
        "='",
        printable(*text),
        "' is not a number of seconds from 0 (no messages) to ",
        kMostSeconds,
        "; correct or unset it"));
  }
  return milliseconds(static_cast<int64_t>(*seconds * 1000));
}

Watchdog& Watchdog::instance() {
  static auto* watchdog = new Watchdog;
  return *watchdog;
}

Membership& Watchdog::join(std::unique_ptr<Membership> membership) {
  const std::lock_guard<std::mutex> lock(mutex_);
  memberships_.push_back(std::move(membership));
  start();
  // Wakes the thread, because the new member may need a shorter interval.
  eventfd_write(runner->wake.get(), 1);
  return *memberships_.back();
}

void Watchdog::start() {
  if (owner_ == getpid()) {
    return;
  }
  if (owner_ == 0) {
    std::atexit(stop_at_exit);
  }
  owner_ = getpid();
  prepare_native_stacks();
  // A forked child inherits the object but not the thread.
  runner = new Runner;
  runner->owner = owner_;
  runner->wake = UniqueFile(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  try {
    // Created here and not on the thread, because this reads the environment,
    // which the program may be changing concurrently.
    runner->socket = std::make_unique<JobSocket>();
  } catch (const Error&) {
  }
  runner->thread = background_thread([this] { run(); });
}

std::vector<Membership*> Watchdog::memberships() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Membership*> living;
  for (const auto& membership : memberships_) {
    if (!membership->is_over) {
      living.push_back(membership.get());
    }
  }
  return living;
}

void Watchdog::run() {
  const auto socket = std::move(runner->socket);
  while (!runner->is_stopping) {
    milliseconds interval = interval_for({});
    for (const auto* membership : memberships()) {
      interval = std::min(interval, interval_for(*membership));
    }
    pollfd events[] = {
        {runner->wake.get(), POLLIN, 0},
        {socket ? socket->file() : -1, POLLIN, 0}};
    poll(events, 2, static_cast<int>(interval.count()));
    eventfd_t ignored = 0;
    eventfd_read(runner->wake.get(), &ignored);
    if (runner->is_stopping) {
      return;
    }
    if ((events[1].revents & POLLIN) != 0) {
      socket->answer([this] { return look(); });
    }
    watch();
  }
}

milliseconds Watchdog::interval_for(
    const Membership& membership,
    milliseconds longest) {
  constexpr int kLooksPerThreshold = 10;
  return membership.threshold.count() == 0
             ? longest
             : std::clamp(
                   membership.threshold / kLooksPerThreshold,
                   kShortestInterval,
                   longest);
}

void Watchdog::watch() {
  watch_script();
  std::set<std::string> groups_of_threads;
  for (auto* membership : memberships()) {
    watch_count(*membership);
    if (membership->threshold.count() == 0) {
      continue;
    }
    watch_data(*membership);
    watch_end(*membership);
    if (!membership->threads_of.empty()) {
      groups_of_threads.insert(membership->threads_of);
    } else {
      watch_store(*membership);
    }
  }
  for (const auto& group : groups_of_threads) {
    watch_threads(group);
  }
}

// A collective that the script calls without this library is not recorded, but
// visible on the stack. An interpreter that runs is not queried.
void Watchdog::watch_script() {
  const auto now = Clock::now();
  for (const auto* membership : memberships()) {
    const auto record = record_of(*membership);
    if (membership->world_size > 1 && has_script_stack() && record &&
        record->phase() == StepPhase::kUser &&
        now - record->since() >= interval_for(*membership)) {
      note_script(script_stack());
      return;
    }
  }
  note_script(ScriptStack{});
}

void Watchdog::note_script(const std::optional<ScriptStack>& answer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!answer) {
    return; // The state is unknown.
  }
  if (answer->operation.empty()) {
    script_.reset();
  } else if (!script_ || script_->call != answer->call) {
    script_ = Script{answer->call, Clock::now()};
  }
}

// Collectives that user code calls on the group without this library also show
// progress. They happened between the last check and this one. Assuming the
// earlier time never makes a rank look faster than it is.
void Watchdog::watch_count(Membership& membership) {
  const auto before =
      membership.looked_at.exchange(Clock::now().time_since_epoch().count());
  const auto count =
      membership.num_collectives ? membership.num_collectives() : std::nullopt;
  if (count && membership.num_seen.exchange(*count) != *count) {
    membership.counted_at = before;
  }
}

std::optional<Watchdog::Clock::time_point> Watchdog::waits_since(
    const Membership& membership) {
  const auto record = record_of(membership);
  if (!record || membership.world_size == 1) {
    return std::nullopt;
  }
  const auto phase = record->phase();
  if (phase == StepPhase::kCommunication ||
      (phase == StepPhase::kBackward && !record->operation().empty())) {
    return record->since();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (phase == StepPhase::kUser && script_ &&
      script_->since > record->since()) {
    return script_->since;
  }
  return std::nullopt;
}

bool Watchdog::is_due(const Membership& membership) {
  const auto since = waits_since(membership);
  const auto now = Clock::now();
  if (!since || membership.threshold.count() == 0 ||
      now - *since < membership.threshold) {
    return false;
  }
  const auto begin = since->time_since_epoch().count();
  const bool is_quiet = begin <= membership.quiet_from &&
                        now.time_since_epoch().count() < membership.quiet_until;
  return !is_quiet &&
         (begin != membership.reported_wait || !membership.is_final);
}

bool Watchdog::has_news(
    const Membership& membership,
    const std::vector<RankReport>& reports,
    const std::vector<SilentRank>& silent) {
  const double threshold = seconds_from(membership.threshold);
  const auto since = waits_since(membership);
  const bool was_reported =
      since && since->time_since_epoch().count() == membership.reported_wait;
  return is_due(membership) && is_hang(reports, silent, threshold) &&
         !(was_reported && names_slow_rank(reports, threshold));
}

// Each query leaves data in the store. Doubling the pause keeps them few, even
// in a wait of hours.
void Watchdog::set_quiet_time(Membership& membership, Clock::duration waited) {
  const auto now = Clock::now();
  const auto quiet = std::max<Clock::duration>(waited, membership.threshold);
  membership.quiet_from = now.time_since_epoch().count();
  membership.quiet_until = (now + quiet).time_since_epoch().count();
}

void Watchdog::note_reported(
    Membership& membership,
    Clock::time_point since,
    bool by_this_rank,
    bool is_final) {
  if (!is_final) {
    set_quiet_time(membership, Clock::now() - since);
  }
  membership.is_final = is_final;
  membership.reported_wait = since.time_since_epoch().count();
  membership.has_spoken = by_this_rank;
}

void Watchdog::note_nothing_to_report(Membership& membership) {
  const auto now = Clock::now();
  set_quiet_time(membership, now - waits_since(membership).value_or(now));
}

void Watchdog::note_queried(Membership& membership) {
  const auto record = record_of(membership);
  if (record && record->phase() == StepPhase::kData) {
    membership.has_reported_data_wait = true;
  }
}

void Watchdog::set_store_holder(
    const Membership& membership,
    SilentRank holder) {
  const std::lock_guard<std::mutex> lock(mutex_);
  store_holders_[&membership] = std::move(holder);
}

RankReport Watchdog::look(const Membership& membership) {
  RankReport report;
  report.rank = membership.rank;
  report.world_size = membership.world_size;
  report.host = own_host();
  report.pid = getpid();
  const auto record = record_of(membership);
  if (!record) {
    return report;
  }
  auto script = script_stack();
  note_script(script);
  report.phase = record->phase();
  auto waits = waits_since(membership);
  if (report.phase == StepPhase::kUser && !script) {
    waits.reset(); // a thread that keeps the interpreter is computing
  }
  const Clock::time_point moved{Clock::duration(membership.counted_at)};
  report.waits = waits.has_value();
  report.seconds = seconds_from(
      Clock::now() - waits.value_or(std::max(record->since(), moved)));
  report.operation = record->operation();
  report.number = record->own_number();
  if (report.number == 0) {
    const auto counted = membership.num_collectives
                             ? membership.num_collectives()
                             : std::nullopt;
    report.number = counted.value_or(record->number());
  }
  if (script) {
    report.stack = std::move(script->stack);
    if (report.waits && report.operation.empty()) {
      report.operation = script->operation;
    }
  } else {
    report.stack = native_stack(record->thread());
  }
  return report;
}

std::vector<RankReport> Watchdog::look() {
  std::vector<RankReport> reports;
  for (const auto* membership : memberships()) {
    reports.push_back(look(*membership));
  }
  return reports;
}

void Watchdog::watch_threads(const std::string& threads_of) {
  std::vector<Membership*> ranks;
  for (auto* membership : memberships()) {
    if (membership->threads_of == threads_of) {
      ranks.push_back(membership);
    }
  }
  const auto due =
      std::find_if(ranks.begin(), ranks.end(), [this](const auto* rank) {
        return is_due(*rank);
      });
  if (due == ranks.end()) {
    return;
  }
  std::vector<RankReport> reports;
  for (const auto* rank : ranks) {
    reports.push_back(look(*rank));
  }
  const double threshold = seconds_from((*due)->threshold);
  const bool says = has_news(**due, reports, {});
  if (says) {
    say(describe_hang(reports, {}, threshold));
  }
  for (auto* rank : ranks) {
    const auto since = waits_since(*rank);
    if (since && says) {
      note_reported(
          *rank, *since, rank == *due, !names_slow_rank(reports, threshold));
    } else if (is_due(*rank)) {
      note_nothing_to_report(*rank);
    }
    note_queried(*rank);
  }
}

void Watchdog::watch_data(Membership& membership) {
  // Ranks that wait for this one in a collective report first, and name it.
  const auto patience =
      membership.threshold +
      (membership.world_size == 1 ? milliseconds(0) : kPeersPatience);
  const auto record = record_of(membership);
  if (!record || record->phase() != StepPhase::kData ||
      membership.has_reported_data_wait ||
      Clock::now() - record->since() < patience) {
    return;
  }
  // Report once: a loader that is sometimes slow is visible in the step times.
  membership.has_reported_data_wait = true;
  say("[hang] The data loader has not returned a batch for a while. Check its "
      "dataset and its workers:\n  " +
      describe_ranks({look(membership)}));
}

// Handles a store that does not answer: reports what this rank knows.
void Watchdog::watch_store(Membership& membership) {
  const auto asking = membership.asking_since.load();
  const auto now = Clock::now().time_since_epoch();
  const auto since = waits_since(membership);
  if (asking == 0 || now - Clock::duration(asking) < kStorePatience || !since ||
      !is_due(membership)) {
    return;
  }
  SilentRank holder;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    holder = store_holders_[&membership];
  }
  say(describe_hang(
          {look(membership)}, {holder}, seconds_from(membership.threshold)) +
      "\n  it hosts the store through which ranks query each other, so the "
      "state of the other ranks is unknown");
  note_reported(membership, *since, true, true);
}

void Watchdog::watch_end(Membership& membership) {
  const auto since = waits_since(membership);
  if (membership.has_spoken && (!since || since->time_since_epoch().count() !=
                                              membership.reported_wait)) {
    membership.has_spoken = false;
    const Clock::time_point begin{Clock::duration(membership.reported_wait)};
    say(str_cat(
        "[hang] rank ",
        membership.rank,
        " stopped waiting after ",
        static_cast<int64_t>(seconds_from(Clock::now() - begin)),
        " s"));
  }
}

void Watchdog::say(const std::string& message) {
  const std::string line = message.ends_with('\n') ? message : message + '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

} // namespace accelerate
