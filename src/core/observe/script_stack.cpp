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
struct Asker {
  static Asker& instance() {
    static auto* asker = new Asker;
    return *asker;
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
  auto& asker = Asker::instance();
  const std::lock_guard<std::mutex> lock(asker.mutex);
  asker.take = std::move(take);
}

void drop_script_stack() {
  auto& asker = Asker::instance();
  std::unique_lock<std::mutex> lock(asker.mutex);
  asker.take = nullptr;
  asker.changed.wait(lock, [&] { return !asker.is_asking(); });
}

bool has_script_stack() {
  auto& asker = Asker::instance();
  const std::lock_guard<std::mutex> lock(asker.mutex);
  return asker.take != nullptr;
}

std::optional<ScriptStack> script_stack() {
  auto& asker = Asker::instance();
  std::unique_lock<std::mutex> lock(asker.mutex);
  if (!asker.take) {
    return std::nullopt;
  }
  const uint64_t before = asker.num_answers;
  if (!asker.is_asking()) {
    try {
      background_thread([&asker, take = asker.take] {
        auto answer = take();
        const std::lock_guard<std::mutex> answered(asker.mutex);
        asker.answer = std::move(answer);
        ++asker.num_answers;
        asker.asking = 0;
        asker.changed.notify_all();
      }).detach();
    } catch (const std::system_error&) {
      return std::nullopt; // no more threads; monitoring must not end a run
    }
    asker.asking = getpid();
  }
  if (!asker.changed.wait_for(
          lock, kScriptPatience, [&] { return asker.num_answers > before; })) {
    return std::nullopt;
  }
  return asker.answer;
}

} // namespace accelerate
