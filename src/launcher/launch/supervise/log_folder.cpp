// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/supervise/log_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/str.h"
#include "launcher/launch/supervise/own_folder.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

// The id may come from another machine, so it must name a folder, not a path.
std::string run_name(const std::string& run_id) {
  std::string name = "run_" + run_id;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

} // namespace

fs::path log_folder(
    const fs::path& log_dir,
    const std::string& run_id,
    int attempt,
    int rank) {
  if (log_dir.empty()) {
    return {};
  }
  return log_dir / run_name(run_id) / str_cat("attempt_", attempt) /
         str_cat("rank_", rank);
}

void make_run_folder(const fs::path& log_dir, const std::string& run_id) {
  const std::string name = run_name(run_id);
  open_own_folder(log_dir / name);
  const UniqueFile folder = open_own_folder(log_dir);
  // The link is renamed atomically, so that readers always find one run or the
  // other. On disks without links, users find runs by their names.
  const std::string link = str_cat(".latest.", getpid());
  unlinkat(folder.get(), link.c_str(), 0);
  if (symlinkat(name.c_str(), folder.get(), link.c_str()) == 0) {
    renameat(folder.get(), link.c_str(), folder.get(), "latest");
  }
}

} // namespace accelerate
