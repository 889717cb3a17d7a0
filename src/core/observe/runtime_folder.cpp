// SPDX-License-Identifier: Apache-2.0
#include "core/observe/runtime_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/variables.h"

namespace accelerate {

std::filesystem::path runtime_folder(const EnvLookup& env) {
  const auto own = env(variables::kRuntimeDir);
  const std::filesystem::path folder =
      own && !own->empty()
          ? std::filesystem::path(*own) / "accelerate"
          : std::filesystem::path(str_cat("/tmp/accelerate-", geteuid()));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw SystemError(str_cat(
        "[runtime folder] cannot create ",
        printable(folder.string()),
        " (",
        std::strerror(errno),
        "); set ",
        variables::kRuntimeDir,
        " to a folder of your own"));
  }
  struct stat facts {};
  if (lstat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      facts.st_uid != geteuid() || (facts.st_mode & 077) != 0) {
    throw SystemError(str_cat(
        "[runtime folder] ",
        printable(folder.string()),
        " is not a private folder of this user (mode 0700); remove it, or set ",
        variables::kRuntimeDir,
        " to a folder of your own"));
  }
  return folder;
}

std::filesystem::path socket_of(const std::filesystem::path& folder, int pid) {
  return folder / str_cat(pid, ".sock");
}

} // namespace accelerate
