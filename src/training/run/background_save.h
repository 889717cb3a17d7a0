// SPDX-License-Identifier: Apache-2.0
// Saves in the background during training.
#pragma once

#include <exception>
#include <functional>
#include <thread>

namespace accelerate {

/// Runs one save at a time on a separate thread. The process waits for it
/// before it ends: `exit` and the destructor wait, and print errors to stderr
/// if no caller can receive them. Used by one thread.
class BackgroundSave {
 public:
  BackgroundSave();
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Waits for the previous work. If that threw, rethrows its exception and
  /// starts nothing.
  void start(std::function<void()> work);
  /// Waits for the work. If it threw, rethrows its exception once.
  void wait();

 private:
  friend void finish_background_saves();
  void wait_and_say();

  std::thread thread_;
  std::exception_ptr problem_;
  /// The process that started the thread. A forked child has the object, but
  /// not the thread.
  int owner_ = 0;
};

} // namespace accelerate
