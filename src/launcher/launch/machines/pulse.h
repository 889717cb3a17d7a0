// SPDX-License-Identifier: Apache-2.0
// Sends alive messages while the launcher's main thread is busy.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "core/base/internal.h"

namespace accelerate {

/// Calls each `beat` once a second on a separate thread. If a log on a slow
/// disk blocks the launcher, its machine must not be considered lost.
class ACCELERATE_INTERNAL Pulse {
 public:
  using Beat = std::function<void()>;

  Pulse() = default;
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  /// `beat` must not block. `owner` identifies it for `remove`.
  void add(const void* owner, Beat beat);
  /// After this returns, `beat` is no longer called.
  void remove(const void* owner);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wakes_;
  std::map<const void*, Beat> beats_;
  bool is_over_ = false;
  std::thread thread_;
};

} // namespace accelerate
