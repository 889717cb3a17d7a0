// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/remote_launchers.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

constexpr std::chrono::milliseconds kLaunchersLimit{2000};

// A socket pair instead of a pipe: its buffer accepts a whole order at once,
// and a write to an ssh that has ended raises no signal.
std::pair<UniqueFile, UniqueFile> make_input(const std::string& order) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw SystemError(
        str_cat("[launch] cannot create a socket: ", std::strerror(errno)));
  }
  UniqueFile ours(ends[0]);
  UniqueFile theirs(ends[1]);
  const int size = 1 << 20;
  setsockopt(ours.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
  const auto sent =
      send(ours.get(), order.data(), order.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(order.size())) {
    throw SystemError(str_cat(
        "[launch] the launch command of ",
        order.size(),
        " bytes is too long for ssh; shorten the program's arguments or the "
        "environment"));
  }
  return {std::move(ours), std::move(theirs)};
}

} // namespace

pid_t RemoteLaunchers::start(
    const RemoteLauncher& launcher,
    std::function<void(int wait_status)> ended) {
  auto streams = output_.open_helper(num_started_++);
  auto [ours, theirs] = make_input(launcher.order);
  streams.in = std::move(theirs);
  const pid_t pid = start_child({.command = launcher.command}, streams);
  inputs_[pid] = std::move(ours);
  reaper_.on_end(pid, [this, ended, pid](int status) {
    inputs_.erase(pid);
    ended(status);
    if (inputs_.empty() && done_) {
      std::exchange(done_, nullptr)();
    }
  });
  return pid;
}

void RemoteLaunchers::finish(std::function<void()> done) {
  if (inputs_.empty()) {
    done();
    return;
  }
  done_ = std::move(done);
  loop_.after(kLaunchersLimit, [this] {
    if (done_) {
      std::exchange(done_, nullptr)();
    }
  });
}

} // namespace accelerate
