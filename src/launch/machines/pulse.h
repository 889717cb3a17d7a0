// SPDX-License-Identifier: Apache-2.0
// A heart that beats while the launcher's own thread is busy.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "accelerate/export.h"

namespace accelerate {

/// Calls what was added once a second from a thread of its own: a log on a slow
/// disk may hold the launcher up, and its machine must not seem dead then.
class ACCELERATE_API Pulse {
 public:
  using Beat = std::function<void()>;

  Pulse() = default;
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  /// `beat` must not block. `owner` names it for `remove`.
  void add(const void* owner, Beat beat);
  /// After this returns, `beat` is not called any more.
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
