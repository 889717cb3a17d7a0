// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <string_view>

#include "accelerate/error.h"
#include "base/str.h"
#include "launch/supervise/unique_file.h"

namespace accelerate {
namespace {

struct Process {
  char state = '?';
  pid_t parent = 0;
};

std::optional<pid_t> number(const char* text) {
  pid_t value = 0;
  const auto [stop, error] =
      std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *stop != '\0') {
    return std::nullopt;
  }
  return value;
}

std::optional<Process> read_process(pid_t pid) {
  const UniqueFile file(
      open(str_cat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const auto size = file ? read(file.get(), text, sizeof(text) - 1) : -1;
  if (size <= 0) {
    return std::nullopt; // It ended while we looked.
  }
  text[size] = '\0';
  // The name before may hold blanks and parentheses itself.
  const char* name_end = std::strrchr(text, ')');
  Process process;
  if (name_end == nullptr ||
      std::sscanf(name_end + 1, " %c %d", &process.state, &process.parent) !=
          2) {
    return std::nullopt;
  }
  return process;
}

std::multimap<pid_t, pid_t> children_by_parent() {
  std::multimap<pid_t, pid_t> children;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) {
    throw SystemError(str_cat(
        "[launch] cannot read /proc (",
        std::strerror(errno),
        "); mount it, it is needed to end workers"));
  }
  while (const dirent* entry = readdir(folder)) {
    const auto pid = number(entry->d_name);
    const auto process = pid ? read_process(*pid) : std::nullopt;
    if (process && process->state != 'Z' && process->state != 'X') {
      children.emplace(process->parent, *pid);
    }
  }
  closedir(folder);
  return children;
}

} // namespace

void adopt_orphans() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    throw SystemError(str_cat(
        "[launch] cannot adopt orphaned processes (",
        std::strerror(errno),
        "); Linux 3.4 or newer is needed"));
  }
}

std::vector<pid_t> descendants_of(pid_t root, const std::set<pid_t>& except) {
  const auto children = children_by_parent();
  std::vector<pid_t> found = {root};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [first, last] = children.equal_range(found[i]);
    for (auto child = first; child != last; ++child) {
      if (!except.contains(child->second)) {
        found.push_back(child->second);
      }
    }
  }
  found.erase(found.begin());
  return found;
}

void kill_all_descendants(int limit_ms) {
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigset_t old_mask;
  sigprocmask(SIG_BLOCK, &child_ended, &old_mask);
  timespec start{};
  clock_gettime(CLOCK_MONOTONIC, &start);
  while (true) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const auto left = descendants_of(getpid());
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const long passed_ms = (now.tv_sec - start.tv_sec) * 1000 +
                           (now.tv_nsec - start.tv_nsec) / 1000000;
    if (left.empty() || passed_ms >= limit_ms) {
      break;
    }
    for (const pid_t pid : left) {
      kill(pid, SIGKILL);
    }
    // Whoever forked between the look and the kill dies too: its end wakes
    // this process again.
    const long wait_ms = limit_ms - passed_ms;
    const timespec limit{wait_ms / 1000, (wait_ms % 1000) * 1000000};
    sigtimedwait(&child_ended, nullptr, &limit);
  }
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
}

} // namespace accelerate
