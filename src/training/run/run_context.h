// SPDX-License-Identifier: Apache-2.0
// The data that the classes of a run share.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/accelerator_options.h"
#include "accelerate/state/state_registry.h"
#include "training/optim/optimizer_step.h"
#include "training/run/accumulation.h"
#include "training/run/assemble.h"

namespace accelerate {

/// The progress of a run. Files of a checkpoint that belong together have the
/// same progress.
struct RunProgress final : Stateful {
  int64_t num_backwards = 0;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
};

/// The `TrainingRun` fills it, and it lives as long as the run.
struct RunContext {
  RunContext(
      AcceleratorOptions options,
      const EnvLookup& env,
      std::shared_ptr<StepState> step_state);

  const ProcessTopology& topology() const { return assembly.topology; }
  const ProcessGroup& group() const { return assembly.group; }
  const Mesh& mesh() const { return assembly.mesh; }
  c10::Device device() const { return assembly.device; }
  bool debug() const { return assembly.debug; }
  std::vector<std::shared_ptr<OptimizerStep>> living_optimizers() const;
  std::vector<std::shared_ptr<ModelContext>> living_models() const;
  /// Whether a backward pass at this point synchronises the gradients of any
  /// model.
  bool sends_gradients() const;
  /// Updates the loss scale after the last steps, and rescales gradients that
  /// remain.
  void update_scale() const;

  AcceleratorOptions options;
  Assembly assembly;
  std::shared_ptr<StepState> step_state;
  std::shared_ptr<StateRegistry> state;
  std::shared_ptr<RunProgress> progress;
  std::shared_ptr<StepReductions> reductions;
  std::shared_ptr<Accumulation> accumulation;
  /// Null without fp16.
  std::shared_ptr<GradScaler> scaler;
  std::vector<std::weak_ptr<ModelContext>> models;
  /// Models whose engines need callbacks around a step.
  std::vector<std::weak_ptr<ModelContext>> models_with_callbacks;
  std::vector<std::weak_ptr<OptimizerStep>> optimizers;
};

} // namespace accelerate
