// SPDX-License-Identifier: Apache-2.0
#include "training/run/background_save.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <set>
#include <utility>

namespace accelerate {
namespace {

// Never destroyed, because `exit` in one thread may coincide with a destructor
// in another.
struct RunningSaves {
  std::mutex mutex;
  std::set<BackgroundSave*> all;
};
RunningSaves& running_saves() {
  static auto* const all = new RunningSaves;
  return *all;
}

} // namespace

void finish_background_saves() {
  const std::lock_guard<std::mutex> lock(running_saves().mutex);
  for (auto* save : running_saves().all) {
    save->wait_and_say();
  }
}

BackgroundSave::BackgroundSave() {
  const std::lock_guard<std::mutex> lock(running_saves().mutex);
  running_saves().all.insert(this);
}

BackgroundSave::~BackgroundSave() {
  {
    const std::lock_guard<std::mutex> lock(running_saves().mutex);
    running_saves().all.erase(this);
  }
  wait_and_say();
}

void BackgroundSave::start(std::function<void()> work) {
  wait();
  // Registered at the first use, so that it runs before objects that the work
  // needs are destroyed.
  static const int registered = std::atexit(finish_background_saves);
  static_cast<void>(registered);
  owner_ = getpid();
  thread_ = std::thread([this, work = std::move(work)]() mutable {
    try {
      work();
    } catch (...) {
      problem_ = std::current_exception();
    }
    work = nullptr; // release its objects before the thread object
  });
}

void BackgroundSave::wait() {
  if (!thread_.joinable()) {
    return;
  }
  if (owner_ != getpid()) {
    thread_.detach();
    return;
  }
  thread_.join();
  if (const auto problem = std::exchange(problem_, nullptr)) {
    std::rethrow_exception(problem);
  }
}

void BackgroundSave::wait_and_say() {
  try {
    wait();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
}

} // namespace accelerate
