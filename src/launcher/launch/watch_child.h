// SPDX-License-Identifier: Apache-2.0
// Runs `accelerate watch` together with a job.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>

#include "launcher/launch/supervise/child_process.h"
#include "launcher/launch/supervise/event_loop.h"
#include "launcher/launch/supervise/output_router.h"

namespace accelerate {

/// Starts the page once the run has a folder to show, and ends it with the
/// object. Shows its lines, which contain the page's address, unchanged.
class WatchChild {
 public:
  struct Callbacks {
    /// The run's folder. Empty until it is known.
    std::function<std::filesystem::path()> folder = {};
    std::function<void(pid_t)> started = {};
    std::function<void(const std::string& line)> say = {};
  };

  /// If `opens_browser` is true, the page is shown in the browser.
  WatchChild(
      EventLoop& loop,
      ChildReaper& reaper,
      OutputRouter& output,
      bool opens_browser,
      Callbacks callbacks);
  ~WatchChild();
  WatchChild(const WatchChild&) = delete;
  WatchChild& operator=(const WatchChild&) = delete;

 private:
  void look();
  void start(const std::filesystem::path& folder);

  EventLoop& loop_;
  ChildReaper& reaper_;
  OutputRouter& output_;
  bool opens_browser_;
  Callbacks callbacks_;
  EventLoop::TimerId timer_ = 0;
  pid_t pid_ = 0;
};

} // namespace accelerate
