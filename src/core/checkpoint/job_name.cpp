// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/job_name.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cctype>
#include <sstream>
#include <vector>

#include "core/base/process_stat.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// The host name without the characters that separate the parts of a job name.
std::string this_host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  constexpr std::size_t kMostCharacters = 16;
  auto host = std::string(name.data()).substr(0, kMostCharacters);
  for (auto& character : host) {
    if (std::isalnum(static_cast<unsigned char>(character)) == 0) {
      character = '_';
    }
  }
  return host.empty() ? "host" : host;
}

/// The start time of a process in ticks since boot; empty if it is not running.
std::string start_of(const std::string& pid) {
  const auto stat = read_process_stat(pid);
  return stat ? std::to_string(stat->start_time) : std::string();
}

struct JobName {
  std::string host;
  std::string pid;
  std::string start;
};

std::optional<JobName> parse(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream text(name);
  for (std::string part; std::getline(text, part, '-');) {
    parts.push_back(part);
  }
  if (parts.size() != 4 || parts[1].empty() ||
      parts[1].find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return JobName{parts[0], parts[1], parts[2]};
}

} // namespace

std::string new_job_name() {
  static std::atomic<int> count = 0;
  const auto pid = std::to_string(getpid());
  return str_cat(this_host(), '-', pid, '-', start_of(pid), '-', ++count);
}

std::optional<bool> is_job_alive(const std::string& name) {
  const auto job = parse(name);
  if (!job || job->host != this_host()) {
    return std::nullopt;
  }
  return start_of(job->pid) == job->start;
}

std::string describe_job(const std::string& name) {
  const auto job = parse(name);
  return job ? str_cat("the job of process ", job->pid, " on ", job->host)
             : "another process";
}

} // namespace accelerate
