// SPDX-License-Identifier: Apache-2.0
// What a run reports about its steps: times, and the journal of its rank.
#pragma once

#include <filesystem>
#include <memory>

#include "accelerate/observe/step_times.h"
#include "core/base/internal.h"
#include "training/run/run_context.h"

namespace accelerate {

class RankJournal;

/// Reports the steps of the thread that created the run.
class ACCELERATE_INTERNAL StepReport {
 public:
  explicit StepReport(const RunContext& context);
  ~StepReport();
  StepReport(const StepReport&) = delete;
  StepReport& operator=(const StepReport&) = delete;

  /// The steps of the calling thread since this run was created.
  StepTimes step_times() const;
  /// Prints once what limits the speed of the run, if the options request it.
  /// Called automatically at the end of a run.
  void say_step_times();
  /// Starts writing the steps of the calling thread into a run's folder, until
  /// the run ends: see `RankJournal`.
  void keep_journal(const std::filesystem::path& folder);
  void end_journal();
  /// Called during a step. Writes a line of the journal if one is due.
  void note_step();

 private:
  void report_steps() const;

  const RunContext& context_;
  /// The step times of earlier runs in this thread.
  StepTimes times_before_;
  bool says_step_times_;
  std::unique_ptr<RankJournal> journal_;
};

} // namespace accelerate
