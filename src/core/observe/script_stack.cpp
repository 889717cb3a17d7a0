// SPDX-License-Identifier: Apache-2.0
#include "core/observe/script_stack.h"

#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>

#include "core/base/background_thread.h"

namespace accelerate {
namespace {

constexpr std::chrono::seconds kScriptPatience{1};

// Never destroyed: a thread waiting for the interpreter keeps using it.
struct ScriptStackQuery {
  static ScriptStackQuery& instance() {
    static auto* query = new ScriptStackQuery;
    return *query;
  }
  std::mutex mutex;
  std::condition_variable changed;
  TakeScriptStack take;
  /// The process of the asking thread: a forked child does not have it.
  pid_t asking = 0;
  bool is_asking() const { return asking == getpid(); }
  uint64_t num_answers = 0;
  ScriptStack answer;
};

} // namespace

void set_script_stack(TakeScriptStack take) {
  auto& query = ScriptStackQuery::instance();
  const std::lock_guard<std::mutex> lock(query.mutex);
  query.take = std::move(take);
}

void drop_script_stack() {
  auto& query = ScriptStackQuery::instance();
  std::unique_lock<std::mutex> lock(query.mutex);
  query.take = nullptr;
  query.changed.wait(lock, [&] { return !query.is_asking(); });
}

bool has_script_stack() {
  auto& query = ScriptStackQuery::instance();
  const std::lock_guard<std::mutex> lock(query.mutex);
  return query.take != nullptr;
}

std::optional<ScriptStack> script_stack() {
  auto& query = ScriptStackQuery::instance();
  std::unique_lock<std::mutex> lock(query.mutex);
  if (!query.take) {
    return std::nullopt;
  }
  const uint64_t before = query.num_answers;
  if (!query.is_asking()) {
    try {
      background_thread([&query, take = query.take] {
        auto answer = take();
        const std::lock_guard<std::mutex> answered(query.mutex);
        query.answer = std::move(answer);
        ++query.num_answers;
        query.asking = 0;
        query.changed.notify_all();
      }).detach();
    } catch (const std::system_error&) {
      return std::nullopt; // no more threads; monitoring must not end a run
    }
    query.asking = getpid();
  }
  if (!query.changed.wait_for(
          lock, kScriptPatience, [&] { return query.num_answers > before; })) {
    return std::nullopt;
  }
  return query.answer;
}

} // namespace accelerate
