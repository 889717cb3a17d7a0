// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/event_loop.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

void EventLoop::watch(int file, short events, FileCallback callback) {
  watches_[file] = {events, ++last_id_, std::move(callback)};
}

void EventLoop::unwatch(int file) {
  watches_.erase(file);
}

EventLoop::TimerId EventLoop::after(
    std::chrono::milliseconds delay,
    TimerCallback callback) {
  const TimerId id = ++last_id_;
  const auto due = Clock::now() + delay;
  timers_[{due, id}] = std::move(callback);
  due_[id] = due;
  return id;
}

void EventLoop::cancel(TimerId timer) {
  const auto found = due_.find(timer);
  if (found != due_.end()) {
    timers_.erase({found->second, timer});
    due_.erase(found);
  }
}

void EventLoop::run() {
  while (!is_stopped_) {
    call_ready_files();
    call_due_timers();
  }
  is_stopped_ = false;
}

int EventLoop::next_timeout() const {
  if (timers_.empty()) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      timers_.begin()->first.first - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

void EventLoop::call_due_timers() {
  const auto now = Clock::now();
  while (!is_stopped_ && !timers_.empty() &&
         timers_.begin()->first.first <= now) {
    const auto callback = std::move(timers_.begin()->second);
    due_.erase(timers_.begin()->first.second);
    timers_.erase(timers_.begin());
    callback();
  }
}

void EventLoop::call_ready_files() {
  std::vector<pollfd> files;
  std::vector<uint64_t> generations;
  for (const auto& [file, watch] : watches_) {
    files.push_back({file, watch.events, 0});
    generations.push_back(watch.generation);
  }
  if (poll(files.data(), files.size(), next_timeout()) < 0) {
    if (errno == EINTR) {
      return;
    }
    throw SystemError(
        str_cat("[launch] cannot wait for events: ", std::strerror(errno)));
  }
  for (size_t i = 0; i < files.size() && !is_stopped_; ++i) {
    // An earlier callback may have closed this file and opened another one with
    // the same number.
    const auto found = watches_.find(files[i].fd);
    if (files[i].revents != 0 && found != watches_.end() &&
        found->second.generation == generations[i]) {
      const auto callback = found->second.callback;
      callback(files[i].revents);
    }
  }
}

} // namespace accelerate
