// SPDX-License-Identifier: Apache-2.0
// Records the steps of a run as device graphs and replays them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "training/run/run_context.h"
#include "training/run/step_report.h"

namespace accelerate {

class StreamScope;

/// The host-side effects of a recorded step, which replays must repeat.
struct StepRecording {
  StepState::Counts counts = {};
  int64_t num_backwards = 0;
  /// Updates and clippings of synchronised gradients in the recorded step.
  StepState::UpdateCounts update_counts = {};
  bool is_synchronised = false;
  /// An optimizer whose `step` was called.
  struct Called {
    std::weak_ptr<OptimizerStep> optimizer;
    /// False during accumulation.
    bool is_done;
    /// The device flag that says whether this optimizer's step was skipped.
    /// Each replay writes it.
    at::Tensor overflow;
  };
  std::vector<Called> optimizers = {};
  /// The comparisons between ranks that each replay repeats, and the number of
  /// collectives in the recorded step.
  std::vector<std::string> comparisons = {};
  int64_t num_collectives = 0;
  /// `CaptureLayer::shares_buffers_next` at the end of the step.
  std::vector<std::pair<std::weak_ptr<ModelContext>, bool>> shares_buffers = {};
};

/// The parts of a run that `StepCapture` needs to record and replay steps.
class RecordedSteps {
 public:
  RecordedSteps(const RunContext& context, StepReport& report)
      : context_(context), report_(report) {}

  c10::Device device() const { return context_.device(); }
  /// Why a step of this run with these inputs cannot be recorded. Empty if it
  /// can.
  std::string why_not_to_capture(const std::vector<at::Tensor>& inputs = {});
  /// Call this before the first step that may be recorded. Selects the
  /// recording stream while the returned scope exists, for recorded steps and
  /// others. Returns null if the group is solo (one rank without a backend).
  std::unique_ptr<StreamScope> enter_captured_step();
  /// Describes the host-side state that changes a recording. Steps with
  /// different keys need different graphs.
  std::string capture_key() const;
  /// Whether a step may be recorded or replayed now, rather than only run.
  bool is_recordable() const;
  /// Runs `work`, which records a step. If it throws, gradients and counts are
  /// restored. Comparisons between ranks are deferred to the replays.
  StepRecording record(const std::function<void()>& work);
  /// The last part of a recorded step: updates the loss scale, so that a replay
  /// leaves nothing for the next step to do.
  void end_recorded_step();
  /// These functions apply the host-side effects of a recorded step. Call
  /// `repeat` before a replay and the other two around it. The replay directly
  /// after a recording needs no `repeat`.
  void repeat(const StepRecording& recording);
  void begin_replay(const StepRecording& recording);
  void end_replay(const StepRecording& recording);
  /// Writes the optimizers' learning rates to the tensors that recorded steps
  /// read.
  void write_learning_rates();
  /// A hash of everything that recorded steps depend on: the addresses of
  /// parameters, the memory layouts of engines, and the loads of optimizers. If
  /// it changes, recorded steps are invalid.
  size_t address_hash() const;

 private:
  const RunContext& context_;
  StepReport& report_;
};

} // namespace accelerate
