// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/parent_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"

namespace accelerate {

void check_parent_folder(const std::filesystem::path& folder) {
  struct stat facts {};
  struct stat mark {};
  const bool is_own = lstat(folder.c_str(), &facts) == 0 &&
                      S_ISDIR(facts.st_mode) && facts.st_uid == geteuid() &&
                      (facts.st_mode & 022) == 0;
  const bool is_marked = lstat((folder / kParentMark).c_str(), &mark) == 0 &&
                         S_ISREG(mark.st_mode) && mark.st_uid == geteuid();
  if (!is_own || !is_marked) {
    throw ConfigError(str_cat(
        "[launch] --parent_folder ",
        printable(folder.string()),
        " is not a folder of this user that contains a file ",
        kParentMark,
        ". This option is only for programs that start the launcher"));
  }
}

void remove_parent_folder(const std::filesystem::path& folder) {
  try {
    check_parent_folder(folder);
  } catch (const ConfigError&) {
    return; // no longer the original folder
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

} // namespace accelerate
