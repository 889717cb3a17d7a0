// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/containment.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"

namespace accelerate {
namespace {

[[noreturn]] void refuse(const char* what) {
  throw SystemError(str_cat(
      "[launch] --contain needs ",
      what,
      ", which this system does not allow (",
      std::strerror(errno),
      "); launch without --contain"));
}

void write_map(const char* path, const std::string& text) {
  const UniqueFile file(open(path, O_WRONLY | O_CLOEXEC));
  if (!file || write(file.get(), text.data(), text.size()) < 0) {
    refuse("a user namespace");
  }
}

} // namespace

void prepare_containment() {
  if (unshare(CLONE_NEWPID) == 0) {
    return;
  }
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (errno != EPERM || unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
    refuse("a PID namespace");
  }
  write_map("/proc/self/setgroups", "deny");
  write_map("/proc/self/uid_map", str_cat(user, ' ', user, " 1"));
  write_map("/proc/self/gid_map", str_cat(group, ' ', group, " 1"));
}

void enter_containment() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Mounts of the system stay visible here. Mounts made here are not visible in
  // the system.
  if (unshare(CLONE_NEWNS) != 0 ||
      mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
      mount(
          "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) !=
          0) {
    refuse("its own /proc");
  }
}

} // namespace accelerate
