// SPDX-License-Identifier: Apache-2.0
#include "core/hardware/gpu_use.h"

#include <chrono>
#include <utility>

#include "core/base/background_thread.h"

namespace accelerate {

GpuUse::GpuUse(const std::vector<GpuKind>& kinds, EnvLookup env, int index)
    : index_(index) {
  thread_ = background_thread(
      [this, kinds, env = std::move(env)] { sample(kinds, env); });
}

GpuUse::~GpuUse() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

std::optional<double> GpuUse::busy_seconds() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return busy_;
}

void GpuUse::sample(const std::vector<GpuKind>& kinds, const EnvLookup& env) {
  using Clock = std::chrono::steady_clock;
  std::function<std::optional<double>()> busy_share;
  for (const auto& kind : kinds) {
    if (!busy_share && kind.open_use) {
      busy_share = kind.open_use(env, index_);
    }
  }
  if (!busy_share) {
    return;
  }
  auto before = Clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_.wait_for(
      lock, std::chrono::seconds(1), [&] { return is_stopped_; })) {
    lock.unlock();
    const auto share = busy_share();
    const auto now = Clock::now();
    const std::chrono::duration<double> passed =
        now - std::exchange(before, now);
    lock.lock();
    if (share) {
      busy_ = busy_.value_or(0) + *share * passed.count();
    }
  }
}

} // namespace accelerate
