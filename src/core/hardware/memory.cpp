// SPDX-License-Identifier: Apache-2.0
#include "core/hardware/memory.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <fstream>
#include <string>

namespace accelerate {
namespace {

int64_t as_number(rlim_t limit) {
  return limit == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit);
}

} // namespace

MemoryFigures read_memory() {
  MemoryFigures figures;
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::string unit;
  for (int64_t kibibytes = 0; file >> name >> kibibytes;) {
    std::getline(file, unit);
    if (name == "MemTotal:") {
      figures.total_bytes = kibibytes * 1024;
    } else if (name == "MemAvailable:") {
      figures.available_bytes = kibibytes * 1024;
    }
  }
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) == 0) {
    const auto unit_bytes = static_cast<int64_t>(shared.f_frsize);
    figures.shared_total_bytes =
        unit_bytes * static_cast<int64_t>(shared.f_blocks);
    figures.shared_free_bytes =
        unit_bytes * static_cast<int64_t>(shared.f_bavail);
  }
  return figures;
}

FileLimits read_file_limits() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return {as_number(limit.rlim_cur), as_number(limit.rlim_max)};
}

} // namespace accelerate
