// SPDX-License-Identifier: Apache-2.0
// What a training loop spends its time on, by torch's profiler (Kineto).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Which steps are recorded, counted by `Profile::step`: after `skip_first`
/// steps come cycles of `wait` steps without, `warmup` steps whose records are
/// thrown away, and `active` steps that are kept.
struct ACCELERATE_API ProfileSchedule {
  int64_t skip_first = 0;
  int64_t wait = 0;
  int64_t warmup = 1;
  int64_t active = 1;
  /// How many cycles; 0: until the profile ends.
  int64_t repeat = 1;
};

struct ACCELERATE_API ProfileOptions {
  /// Everything from here to the end where it is not given.
  std::optional<ProfileSchedule> schedule = {};
  /// Also what accelerators do; where it is not given, wherever the run trains
  /// on one.
  std::optional<bool> devices = {};
  /// Shapes of the operators' inputs.
  bool record_shapes = false;
  /// Each allocation; the trace has a line of each device's memory over time,
  /// divided by the part of the step that allocated it.
  bool profile_memory = false;
  bool with_flops = false;
  /// Where it is given, every rank leaves `profile_RANK.json` there for each
  /// cycle (from the second on `profile_RANK_CYCLE.json`), which Perfetto and
  /// chrome://tracing open.
  std::filesystem::path output_trace_dir = {};
};

/// One operator of a profile. Times are of the recorded steps together.
struct ACCELERATE_API ProfiledOperator {
  std::string name = {};
  int64_t calls = 0;
  /// On the host: without the operators that it calls, and with them.
  double self_ms = 0;
  double total_ms = 0;
  /// For what runs on an accelerator: how long it ran there.
  double device_ms = 0;
};

/// `Accelerator::profile` begins one; its end, or `stop`, ends it. One at a
/// time in a process. Used by the thread that trains.
class ACCELERATE_API Profile {
 public:
  Profile(ProfileOptions options, c10::Device device, int rank);
  /// Stops; what goes wrong there is said on stderr.
  ~Profile();
  Profile(Profile&&) noexcept;
  Profile& operator=(Profile&&) = delete;

  /// The end of one step of the loop.
  void step();
  /// Ends the recording and writes what was recorded last. Throws `SystemError`
  /// where a trace cannot be written.
  void stop();

  /// Of the latest cycle that is complete, or after `stop` of all: by device
  /// time, then by own time, the largest first.
  std::vector<ProfiledOperator> operators() const;
  /// The first of them as a table for people.
  std::string table(size_t num_rows = 10) const;
  /// The traces written so far.
  const std::vector<std::filesystem::path>& traces() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
