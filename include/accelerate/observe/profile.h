// SPDX-License-Identifier: Apache-2.0
// Profiles training loops with torch's profiler (Kineto).
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

/// Which steps are recorded. `Profile::step` counts steps. After `skip_first`
/// steps, each cycle has `wait` steps that are not recorded, `warmup` steps
/// whose records are discarded, and `active` steps that are recorded.
struct ACCELERATE_API ProfileSchedule {
  int64_t skip_first = 0;
  int64_t wait = 0;
  int64_t warmup = 1;
  int64_t active = 1;
  /// The number of cycles. 0 means that cycles repeat until the profile ends.
  int64_t repeat = 1;
};

struct ACCELERATE_API ProfileOptions {
  /// The steps to record. If not set, everything up to the end is recorded.
  std::optional<ProfileSchedule> schedule = {};
  /// Also record accelerators. Default: true if the run trains on an
  /// accelerator.
  std::optional<bool> devices = {};
  /// Record the shapes of operator inputs.
  bool record_shapes = false;
  /// Record each allocation. The trace then shows the memory of each device
  /// over time, grouped by the part of the step that allocated it.
  bool profile_memory = false;
  bool with_flops = false;
  /// If set, every rank writes a trace of each cycle to this folder:
  /// `profile_RANK.json` for the first cycle, and `profile_RANK_CYCLE.json` for
  /// later ones. Open the traces with Perfetto or chrome://tracing.
  std::filesystem::path output_trace_dir = {};
};

/// One operator of a profile. Times are totals over the recorded steps.
struct ACCELERATE_API ProfiledOperator {
  std::string name = {};
  int64_t calls = 0;
  /// Host time, excluding and including the operators that it calls.
  double self_ms = 0;
  double total_ms = 0;
  /// Device time, for operators on an accelerator.
  double device_ms = 0;
};

/// A profile starts with `Accelerator::profile` and ends with `stop` or the
/// destructor. Only one profile may exist in a process at a time. Use it from
/// the training thread.
class ACCELERATE_API Profile {
 public:
  Profile(ProfileOptions options, c10::Device device, int rank);
  /// Stops the profile and prints errors to stderr.
  ~Profile();
  Profile(Profile&&) noexcept;
  Profile& operator=(Profile&&) = delete;

  /// Marks the end of one step of the loop.
  void step();
  /// Ends the recording and writes the last trace. Throws `SystemError` if a
  /// trace cannot be written.
  void stop();

  /// The operators of the latest complete cycle or, after `stop`, of everything
  /// that was recorded. They are sorted by device time, then by self time, in
  /// descending order.
  std::vector<ProfiledOperator> operators() const;
  /// The first `num_rows` of `operators()`, as a table.
  std::string table(size_t num_rows = 10) const;
  /// The traces written so far.
  const std::vector<std::filesystem::path>& traces() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace accelerate
