// SPDX-License-Identifier: Apache-2.0
// The ssh processes that run the launchers of other machines.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/unique_file.h"
#include "launcher/launch/supervise/child_process.h"
#include "launcher/launch/supervise/event_loop.h"
#include "launcher/launch/supervise/output_router.h"

namespace accelerate {

/// One launcher to start: the ssh command, and the order for its stdin.
struct RemoteLauncher {
  std::string host = {};
  std::vector<std::string> command = {};
  std::string order = {};
};

/// Starts launchers of other machines and keeps their stdin open. When the
/// stdin of a launcher is closed, it ends everything on its machine.
class RemoteLaunchers {
 public:
  RemoteLaunchers(EventLoop& loop, ChildReaper& reaper, OutputRouter& output)
      : loop_(loop), reaper_(reaper), output_(output) {}

  /// Starts one launcher. Calls `ended` with the wait status. Returns the PID
  /// of ssh. Throws `SystemError` if ssh cannot be executed.
  pid_t start(
      const RemoteLauncher& launcher,
      std::function<void(int wait_status)> ended);
  /// Calls `done` when all launchers have ended, or after two seconds.
  void finish(std::function<void()> done);

 private:
  EventLoop& loop_;
  ChildReaper& reaper_;
  OutputRouter& output_;
  /// The stdin of running ssh processes, by PID.
  std::map<pid_t, UniqueFile> inputs_;
  int num_started_ = 0;
  std::function<void()> done_;
};

} // namespace accelerate
