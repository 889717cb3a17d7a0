// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>

#include "accelerate/error.h"
#include "core/base/process_stat.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"

namespace accelerate {
namespace {

std::optional<pid_t> number(const char* text) {
  pid_t value = 0;
  const auto [stop, error] =
      std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *stop != '\0') {
    return std::nullopt;
  }
  return value;
}

struct Reserve {
  DIR* folder = nullptr;
  /// A reserve descriptor. It is closed while /proc is read, so that reading
  /// works even if all other descriptors are in use.
  UniqueFile file;

  void take() { file = UniqueFile(open("/dev/null", O_RDONLY | O_CLOEXEC)); }
};

Reserve& reserve() {
  static Reserve one;
  return one;
}

/// Closes the reserve descriptor during its lifetime.
class WithoutReserve {
 public:
  WithoutReserve() { reserve().file.reset(); }
  ~WithoutReserve() { reserve().take(); }
  WithoutReserve(const WithoutReserve&) = delete;
  WithoutReserve& operator=(const WithoutReserve&) = delete;
};

/// The content of a file in /proc; empty if the process ended in the meantime.
std::string read_proc(pid_t pid, const char* name) {
  const UniqueFile file(
      open(str_cat("/proc/", pid, '/', name).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno != ENOENT && errno != ESRCH && errno != EACCES) {
    throw SystemError(str_cat(
        "[launch] cannot read /proc (",
        std::strerror(errno),
        "), which the launcher needs to stop workers"));
  }
  char text[4096];
  const auto size = file ? read(file.get(), text, sizeof(text)) : 0;
  return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

std::optional<ProcessStat> read_process(pid_t pid) {
  return parse_process_stat(read_proc(pid, "stat"));
}

std::multimap<pid_t, pid_t> children_by_parent() {
  const WithoutReserve without_reserve;
  std::multimap<pid_t, pid_t> children;
  DIR* kept = reserve().folder;
  DIR* folder = kept != nullptr ? kept : opendir("/proc");
  if (folder == nullptr) {
    throw SystemError(str_cat(
        "[launch] cannot read /proc (",
        std::strerror(errno),
        "), which the launcher needs to stop workers; mount it"));
  }
  rewinddir(folder);
  while (const dirent* entry = readdir(folder)) {
    const auto pid = number(entry->d_name);
    const auto process = pid ? read_process(*pid) : std::nullopt;
    if (process && process->state != 'Z' && process->state != 'X') {
      children.emplace(process->parent, *pid);
    }
  }
  if (kept == nullptr) {
    closedir(folder);
  }
  return children;
}

bool has_flag(const std::string& status, std::string_view name, int signal) {
  const size_t line = status.find(str_cat('\n', name, ":\t"));
  if (line == std::string::npos) {
    return false;
  }
  const auto flags =
      std::strtoull(status.c_str() + line + name.size() + 3, nullptr, 16);
  return (flags >> (signal - 1) & 1) != 0;
}

} // namespace

void adopt_orphans() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    throw SystemError(str_cat(
        "[launch] cannot adopt orphaned processes (",
        std::strerror(errno),
        "); Linux 3.4 or newer is needed"));
  }
  // Open the folder again after each fork, because parent and child share a
  // directory offset.
  if (reserve().folder != nullptr) {
    closedir(reserve().folder);
  }
  reserve().folder = opendir("/proc");
  reserve().take();
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

bool has_signal_flag(pid_t pid, std::string_view name, int signal) {
  const WithoutReserve without_reserve;
  return has_flag(read_proc(pid, "status"), name, signal);
}

bool is_at_rest(pid_t pid, int signal) {
  const WithoutReserve without_reserve;
  const std::string status = read_proc(pid, "status");
  return status.find("\nState:\tS") != std::string::npos &&
         !has_flag(status, "ShdPnd", signal);
}

std::string describe_process(pid_t pid) {
  const WithoutReserve without_reserve;
  const auto process = read_process(pid);
  std::string name = read_proc(pid, "comm");
  name = name.substr(0, name.find('\n'));
  return str_cat(
      pid, " (", name, ", state ", process ? process->state : '?', ')');
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
    // A process that forked between the scan and the kill also dies, because
    // its end wakes this loop again.
    const long wait_ms = limit_ms - passed_ms;
    const timespec limit{wait_ms / 1000, (wait_ms % 1000) * 1000000};
    sigtimedwait(&child_ended, nullptr, &limit);
  }
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
}

} // namespace accelerate
