// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/own_folder.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <string>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& folder, int cause) {
  throw SystemError(str_cat(
      "[launch] cannot create the folder ",
      printable(folder.string()),
      " (",
      std::strerror(cause),
      "); ",
      hint_for_logs(cause)));
}

/// Opens one component of a path. Opens a link itself, and creates a missing
/// folder.
UniqueFile step(const UniqueFile& at, const std::string& name) {
  constexpr int kHow = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  UniqueFile next(openat(at.get(), name.c_str(), kHow));
  // Another rank may create the folder at the same moment.
  if (!next && errno == ENOENT &&
      (mkdirat(at.get(), name.c_str(), 0777) == 0 || errno == EEXIST)) {
    next = UniqueFile(openat(at.get(), name.c_str(), kHow));
  }
  return next;
}

std::string read_link(const UniqueFile& link) {
  char target[PATH_MAX];
  const auto size = readlinkat(link.get(), "", target, sizeof(target));
  return {target, static_cast<size_t>(size < 0 ? 0 : size)};
}

void check_owner(const fs::path& link, const struct stat& facts) {
  if (facts.st_uid != geteuid() && facts.st_uid != 0) {
    throw SystemError(str_cat(
        "[launch] ",
        printable(link.string()),
        " is a link owned by another user, who could redirect the logs to any "
        "of your files; pass --log_dir a folder that you own"));
  }
}

} // namespace

const char* hint_for_logs(int cause) {
  return cause == EMFILE || cause == ENFILE
             ? "raise the limit on open files (ulimit -n)"
             : "pass --log_dir a folder that you can write to";
}

UniqueFile open_own_folder(const fs::path& path) {
  constexpr int kMostLinks = 40; // the kernel's limit
  const auto top = [] { return UniqueFile(open("/", O_PATH | O_CLOEXEC)); };
  std::deque<std::string> left;
  for (const auto& name : path.relative_path()) {
    left.push_back(name);
  }
  UniqueFile at = top();
  fs::path reached = "/";
  for (int num_links = 0; !left.empty();) {
    const std::string name = left.front();
    left.pop_front();
    if (name.empty()) {
      continue; // after a trailing slash
    }
    UniqueFile next = step(at, name);
    struct stat facts {};
    if (!next || fstat(next.get(), &facts) != 0) {
      refuse(path, errno);
    }
    if (S_ISDIR(facts.st_mode)) {
      at = std::move(next);
      reached /= name;
      continue;
    }
    if (!S_ISLNK(facts.st_mode)) {
      refuse(path, ENOTDIR);
    }
    check_owner(reached / name, facts);
    const fs::path target = read_link(next);
    if (++num_links > kMostLinks) {
      refuse(path, ELOOP);
    }
    if (target.is_absolute()) {
      at = top();
      reached = "/";
    }
    const fs::path rest = target.relative_path();
    left.insert(left.begin(), rest.begin(), rest.end());
  }
  return at;
}

} // namespace accelerate
