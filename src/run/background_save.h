// SPDX-License-Identifier: Apache-2.0
// A save that goes on while training does.
#pragma once

#include <exception>
#include <functional>
#include <thread>

namespace accelerate {

/// One piece of work at a time in a thread of its own. The process does not end
/// before it: `exit` and the destructor wait, and say on stderr what went wrong
/// where nobody can be told any more. Used by one thread.
class BackgroundSave {
 public:
  BackgroundSave();
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Waits for the work before. Throws what that threw, and then begins
  /// nothing.
  void start(std::function<void()> work);
  /// Until the work is done. Throws what it threw, once.
  void wait();

 private:
  friend void finish_background_saves();
  void wait_and_say();

  std::thread thread_;
  std::exception_ptr problem_;
  /// A child that was forked off has the object, but not the thread.
  int owner_ = 0;
};

} // namespace accelerate
