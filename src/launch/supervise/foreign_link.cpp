// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/foreign_link.h"

#include <sys/stat.h>
#include <unistd.h>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {

void refuse_foreign_links(const std::filesystem::path& path) {
  std::filesystem::path part;
  for (const auto& name : std::filesystem::absolute(path)) {
    part /= name;
    struct stat facts {};
    if (lstat(part.c_str(), &facts) == 0 && S_ISLNK(facts.st_mode) &&
        facts.st_uid != geteuid() && facts.st_uid != 0) {
      throw SystemError(str_cat(
          "[launch] ",
          part.string(),
          " is a link of another user, who could lead the logs to any file of "
          "yours; give --log_dir a folder of your own"));
    }
  }
}

} // namespace accelerate
