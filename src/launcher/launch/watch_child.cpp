// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/watch_child.h"

#include <fcntl.h>
#include <signal.h>

#include "accelerate/error.h"
#include "core/base/programs.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPause{500};
// Any id, because the router does not distinguish helpers by their ids.
constexpr int kHelper = 0;

bool has_files(const fs::path& folder) {
  std::error_code error;
  return !folder.empty() && !fs::is_empty(folder, error) && !error;
}

} // namespace

WatchChild::WatchChild(
    EventLoop& loop,
    ChildReaper& reaper,
    OutputRouter& output,
    bool opens_browser,
    Callbacks callbacks)
    : loop_(loop),
      reaper_(reaper),
      output_(output),
      opens_browser_(opens_browser),
      callbacks_(std::move(callbacks)) {
  look();
}

WatchChild::~WatchChild() {
  loop_.cancel(timer_);
  if (pid_ != 0) {
    reaper_.forget(pid_);
    kill(pid_, SIGTERM);
  }
}

void WatchChild::look() {
  const fs::path folder = callbacks_.folder();
  if (has_files(folder)) {
    timer_ = 0;
    start(folder);
    return;
  }
  timer_ = loop_.after(kPause, [this] { look(); });
}

void WatchChild::start(const fs::path& folder) {
  ChildCommand command;
  command.command = {own_program().string(), "watch", folder.string()};
  if (opens_browser_) {
    command.command.emplace_back("--open");
  }
  try {
    auto streams = output_.open_helper(kHelper);
    // Standard output belongs to the program, so the page's lines go to stderr.
    streams.out = UniqueFile(fcntl(streams.err.get(), F_DUPFD_CLOEXEC, 0));
    pid_ = start_child(command, streams);
    reaper_.on_end(pid_, [this](int) { pid_ = 0; });
    callbacks_.started(pid_);
  } catch (const SystemError& error) {
    callbacks_.say(error.what());
  }
}

} // namespace accelerate
