// SPDX-License-Identifier: Apache-2.0
#include "training/run/step_report.h"

#include <torch/version.h>

#include <algorithm>
#include <utility>

#include "core/hardware/gpu_use.h"
#include "core/observe/rank_record.h"
#include "core/observe/watchdog.h"
#include "core/process/run_report.h"
#include "core/tracking/rank_journal.h"
#include "training/device/device.h"
#include "training/verification/step_recorder.h"

namespace accelerate {
StepReport::StepReport(const RunContext& context)
    : context_(context),
      times_before_(RankRecord::of_this_thread().step_times()),
      says_step_times_(context.assembly.step_summary) {}

StepReport::~StepReport() = default;

void StepReport::report_steps() const {
  if (StepRecorder::get() != nullptr) {
    return; // `accelerate verify` reports the steps.
  }
  const auto num_steps =
      context_.topology().is_main() ? step_times().num_steps : 0;
  if (num_steps > 0) {
    RunReporter::of_this_process().set_steps(num_steps);
  }
}

StepTimes StepReport::step_times() const {
  auto times = RankRecord::of_this_thread().step_times();
  times.num_steps -= times_before_.num_steps;
  const auto num_last = std::min<int64_t>(
      times.num_steps, static_cast<int64_t>(times.last.size()));
  times.last.erase(times.last.begin(), times.last.end() - num_last);
  const auto& before = times_before_.sum;
  times.sum.data -= before.data;
  times.sum.forward -= before.forward;
  times.sum.backward -= before.backward;
  times.sum.communication -= before.communication;
  times.sum.optimizer -= before.optimizer;
  times.sum.checkpoint -= before.checkpoint;
  times.sum.captured -= before.captured;
  times.sum.other -= before.other;
  return times;
}

void StepReport::say_step_times() {
  if (std::exchange(says_step_times_, false) && context_.topology().is_main()) {
    const auto summary = step_times().summary();
    if (!summary.empty()) {
      Watchdog::say("[step_times] " + summary);
    }
  }
}

void StepReport::keep_journal(const std::filesystem::path& folder) {
  const auto environment = context_.options.environment
                               ? *context_.options.environment
                               : detect_environment();
  RankJournal::Rank rank = {
      .rank = context_.topology().rank,
      .num_processes = context_.topology().world_size,
      .attempt = environment.rendezvous.attempt,
      .versions = {{"torch", TORCH_VERSION}}};
  if (!context_.device().is_cpu()) {
    rank.device = context_.device().str();
    rank.device_memory = [device = context_.device()] {
      return device_bytes(device).current;
    };
    const auto use = std::make_shared<const GpuUse>(
        gpu_kinds(), system_env, context_.device().index());
    rank.device_busy = [use] { return use->busy_seconds(); };
  }
  end_journal();
  if (context_.topology().is_main()) {
    RunReporter::of_this_process().set_folder(
        std::filesystem::absolute(folder));
  }
  journal_ =
      std::make_unique<RankJournal>(folder, std::move(rank), step_times());
}

void StepReport::end_journal() {
  report_steps();
  if (const auto journal = std::exchange(journal_, nullptr)) {
    journal->finish(step_times());
  }
}

void StepReport::note_step() {
  const auto now = RankJournal::Clock::now();
  if (RunReporter::of_this_process().is_due(now)) {
    report_steps();
  }
  if (journal_ && journal_->is_due(now)) {
    journal_->write(step_times(), now);
  }
}

} // namespace accelerate
