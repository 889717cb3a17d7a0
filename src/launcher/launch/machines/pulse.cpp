// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/pulse.h"

#include <chrono>
#include <system_error>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

Pulse::~Pulse() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wakes_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Pulse::add(const void* owner, Beat beat) {
  const std::lock_guard lock(mutex_);
  beats_[owner] = std::move(beat);
  if (thread_.joinable()) {
    return;
  }
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw SystemError(str_cat(
        "[launch] cannot start a thread (",
        error.what(),
        "); raise the limit on processes (ulimit -u)"));
  }
}

void Pulse::remove(const void* owner) {
  const std::lock_guard lock(mutex_);
  beats_.erase(owner);
}

void Pulse::run() {
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    wakes_.wait_for(lock, std::chrono::seconds(1));
    for (const auto& [owner, beat] : beats_) {
      beat();
    }
  }
}

} // namespace accelerate
