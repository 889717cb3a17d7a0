// SPDX-License-Identifier: Apache-2.0
#include "core/tracking/rank_journal.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "accelerate/observe/logger.h"
#include "accelerate/version.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/tracking/run_folder.h"
#include "core/tracking/run_origin.h"

namespace accelerate {
namespace {

using JournalLine = nlohmann::ordered_json;

constexpr std::chrono::seconds kLeastBetweenLines{1};
/// A line covers at least this fraction of the elapsed time.
constexpr int kLeastShareOfRun = 4000;

constexpr std::array<double StepTimes::Phases::*, kPhaseNames.size()> kPhases =
    {&StepTimes::Phases::data,
     &StepTimes::Phases::forward,
     &StepTimes::Phases::backward,
     &StepTimes::Phases::communication,
     &StepTimes::Phases::optimizer,
     &StepTimes::Phases::checkpoint,
     &StepTimes::Phases::captured,
     &StepTimes::Phases::other};

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

int64_t resident_bytes() {
  int64_t size = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double in_microseconds(double seconds) {
  return std::round(seconds * 1e6) / 1e6;
}

std::string line_of(const JournalLine& fields) {
  JournalLine line = {{"time", wall_seconds()}};
  line.update(fields);
  return line.dump(-1, ' ', false, JournalLine::error_handler_t::replace) +
         '\n';
}

/// Rank 0 also says what started the run.
JournalLine start_fields(const RankJournal::Rank& rank) {
  JournalLine fields = {
      {"event", "start"},
      {"schema", kRunFolderSchema},
      {"rank", rank.rank},
      {"num_processes", rank.num_processes},
      {"attempt", rank.attempt},
      {"host", this_host()},
      {"pid", getpid()}};
  if (!rank.device.empty()) {
    fields["device"] = rank.device;
  }
  if (rank.rank == 0) {
    std::error_code no_folder;
    const auto folder = std::filesystem::current_path(no_folder);
    fields["command"] = own_command();
    fields["directory"] = folder.string();
    if (const auto commit = git_commit(folder); !commit.empty()) {
      fields["commit"] = commit;
    }
    JournalLine versions = {{"accelerate", ACCELERATE_VERSION}};
    versions.update(JournalLine(rank.versions));
    fields["versions"] = std::move(versions);
  }
  return fields;
}

} // namespace

RankJournal::RankJournal(
    const std::filesystem::path& folder,
    Rank rank,
    const StepTimes& before)
    : rank_(std::move(rank)),
      begin_(Clock::now()),
      next_(begin_ + kLeastBetweenLines),
      cpu_(cpu_seconds()),
      num_steps_(before.num_steps),
      phases_(before.sum),
      num_before_(before.num_steps) {
  try {
    const auto ranks = folder / kRanksFolder;
    std::filesystem::create_directories(ranks);
    file_.emplace(ranks / rank_file_name(rank_.rank), /*cut_line=*/true);
    file_->write(line_of(start_fields(rank_)));
  } catch (const std::exception& error) {
    say_failure(error);
  }
}

RankJournal::~RankJournal() = default;

void RankJournal::write(const StepTimes& times, Clock::time_point now) {
  next_ = now + std::max<Clock::duration>(
                    kLeastBetweenLines, (now - begin_) / kLeastShareOfRun);
  if (!file_) {
    next_ = Clock::time_point::max();
    return;
  }
  try {
    write_steps(times);
  } catch (const std::exception& error) {
    say_failure(error);
  }
}

void RankJournal::finish(const StepTimes& times) {
  if (!file_) {
    return;
  }
  try {
    write_steps(times);
    file_->write(line_of({{"event", "finish"}}));
  } catch (const std::exception& error) {
    say_failure(error);
  }
  file_.reset();
}

void RankJournal::write_steps(const StepTimes& times) {
  if (times.num_steps <= num_steps_) {
    return;
  }
  const double cpu = cpu_seconds();
  JournalLine values = {
      {kStepsValue, times.num_steps - num_steps_},
      {kCpuValue, in_microseconds(cpu - cpu_)},
      {kMemoryValue, resident_bytes()}};
  if (rank_.device_memory) {
    values[kDeviceMemoryValue] = rank_.device_memory();
  }
  if (const auto busy =
          rank_.device_busy ? rank_.device_busy() : std::optional<double>()) {
    values[kDeviceBusyValue] =
        in_microseconds(*busy - device_busy_.value_or(0));
    device_busy_ = busy;
  }
  for (size_t i = 0; i < kPhases.size(); ++i) {
    const double time =
        in_microseconds(times.sum.*kPhases[i] - phases_.*kPhases[i]);
    if (time > 0) {
      values[kPhaseNames[i]] = time;
    }
  }
  cpu_ = cpu;
  num_steps_ = times.num_steps;
  phases_ = times.sum;
  file_->write(line_of(
      {{"step", num_steps_ - num_before_}, {"values", std::move(values)}}));
}

void RankJournal::say_failure(const std::exception& error) {
  file_.reset();
  print_line(
      std::cerr,
      str_cat(
          "[RANK ",
          rank_.rank,
          "] ",
          printable(error.what()),
          ". The `accelerate watch` page will show no further steps of this "
          "rank"));
}

} // namespace accelerate
