// SPDX-License-Identifier: Apache-2.0
#include "launch/supervise/log_folder.h"

#include <unistd.h>

#include <algorithm>

#include "accelerate/error.h"
#include "base/str.h"
#include "launch/supervise/foreign_link.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

// The id may come from another machine: it names a folder, not a path.
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
  return fs::absolute(log_dir) / run_name(run_id) /
         str_cat("attempt_", attempt) / str_cat("rank_", rank);
}

void make_run_folder(const fs::path& log_dir, const std::string& run_id) {
  refuse_foreign_links(log_dir);
  std::error_code error;
  fs::create_directories(log_dir / run_name(run_id), error);
  if (error) {
    throw SystemError(str_cat(
        "[launch] cannot make the folder ",
        (log_dir / run_name(run_id)).string(),
        " (",
        error.message(),
        "); give --log_dir a folder that you can write to"));
  }
  // Renamed into its place: readers always find one run or the other. Where
  // the disk cannot hold links, runs are found by their names.
  const fs::path link = log_dir / str_cat(".latest.", getpid());
  fs::remove(link, error);
  fs::create_directory_symlink(run_name(run_id), link, error);
  fs::rename(link, log_dir / "latest", error);
}

} // namespace accelerate
