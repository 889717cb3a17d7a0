// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/oom_kills.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "core/base/str.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

int64_t read_counter(const fs::path& file) {
  std::ifstream lines(file);
  std::string name;
  int64_t value = 0;
  while (lines >> name >> value) {
    if (name == "oom_kill") {
      return value;
    }
  }
  return 0;
}

/// Looks in the mount point, too: inside a container, the path of the group may
/// be that of the host.
fs::path find_counter(
    const fs::path& mount,
    const std::string& group,
    const char* name) {
  std::error_code ignored;
  for (const fs::path& folder :
       {mount / fs::path(group).relative_path(), mount}) {
    if (fs::exists(folder / name, ignored)) {
      return folder / name;
    }
  }
  return {};
}

bool is_oom_record(const std::string& record, pid_t pid) {
  return record.find(str_cat("Killed process ", pid, " (")) !=
             std::string::npos ||
         (record.find("oom-kill:") != std::string::npos &&
          record.find(str_cat(",pid=", pid, ",")) != std::string::npos);
}

} // namespace

fs::path oom_counter_file(const fs::path& groups, const fs::path& root) {
  std::ifstream lines(groups);
  std::string line;
  fs::path unified;
  while (std::getline(lines, line)) {
    // "4:memory:/a/b" is version 1, "0::/a/b" version 2.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers == "memory") {
      return find_counter(root / "memory", group, "memory.oom_control");
    }
    if (controllers.empty()) {
      unified = find_counter(root, group, "memory.events");
    }
  }
  return unified;
}

OomKills::OomKills(fs::path counter)
    : counter_(std::move(counter)),
      before_(read_counter(counter_)),
      log_(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (log_) {
    lseek(log_.get(), 0, SEEK_END);
  }
}

bool OomKills::may_have_killed(pid_t pid) {
  if (read_counter(counter_) > before_) {
    return true;
  }
  char record[8192];
  ssize_t size = 0;
  // A record that was overwritten meanwhile is skipped (EPIPE).
  while (log_ && ((size = read(log_.get(), record, sizeof(record))) > 0 ||
                  errno == EPIPE)) {
    if (size > 0 &&
        is_oom_record(std::string(record, static_cast<size_t>(size)), pid)) {
      return true;
    }
  }
  return false;
}

} // namespace accelerate
