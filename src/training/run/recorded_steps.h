// SPDX-License-Identifier: Apache-2.0
// Recording and replaying the steps of a run as graphs of the device.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal.h"
#include "training/run/run_context.h"
#include "training/run/step_report.h"

namespace accelerate {

class StreamScope;

/// The host-side effects of a recorded step, which replays must repeat.
struct RunTrace {
  StepState::Counts counts = {};
  int64_t num_backwards = 0;
  /// What its optimizers and clipping did with gradients that all ranks share.
  StepState::Shared shared = {};
  bool is_synchronised = false;
  /// An optimizer whose `step` was called.
  struct Called {
    std::weak_ptr<OptimizerStep> optimizer;
    /// False during accumulation.
    bool is_done;
    /// Where the recorded step writes whether it was skipped.
    at::Tensor overflow;
  };
  std::vector<Called> optimizers = {};
  /// The messages of ranks, and the number of collectives on the device.
  std::vector<std::string> comparisons = {};
  int64_t num_collectives = 0;
  /// `CaptureLayer::shares_buffers_next` at the end of the step.
  std::vector<std::pair<std::weak_ptr<ModelContext>, bool>> shares_buffers = {};
};

/// What `StepCapture` needs from a run.
class ACCELERATE_INTERNAL RecordedSteps {
 public:
  RecordedSteps(const RunContext& context, StepReport& report)
      : context_(context), report_(report) {}

  c10::Device device() const { return context_.device(); }
  /// Why a step of this run with such inputs cannot be recorded; empty if it
  /// can.
  std::string why_not_to_capture(const std::vector<at::Tensor>& inputs = {});
  /// Call it before the first step that may be recorded. Returns the stream
  /// that such steps run on, recorded or not: a separate one if gradients are
  /// synchronised.
  std::unique_ptr<StreamScope> enter_captured_step();
  /// The host-side state that decides which work a step queues.
  std::string capture_key() const;
  /// Whether a step may be recorded or replayed now, rather than only run.
  bool is_recordable() const;
  /// Runs `work`, which records a step. If it throws, gradients and counts are
  /// restored. Does not communicate.
  RunTrace trace(const std::function<void()>& work);
  /// The last part of a recorded step: updates the loss scale, so that a replay
  /// leaves nothing for the next step to do.
  void end_recorded_step();
  /// The host-side effects of such a step, around a replay. The first replay
  /// skips `repeat`, because the recording has already done that.
  void repeat(const RunTrace& trace);
  void begin_replay(const RunTrace& trace);
  void end_replay(const RunTrace& trace);
  /// Writes the optimizers' learning rates to the tensors that recorded steps
  /// read.
  void write_learning_rates();
  /// Changes when tensors of models or optimizers move to other addresses.
  size_t address_hash() const;

 private:
  const RunContext& context_;
  StepReport& report_;
};

} // namespace accelerate
