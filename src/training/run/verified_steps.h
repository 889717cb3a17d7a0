// SPDX-License-Identifier: Apache-2.0
// Records the steps of a run for `accelerate verify`.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerate/training/accumulate.h"
#include "training/parallel/arrivals.h"
#include "training/run/run_checkpoints.h"
#include "training/run/run_context.h"
#include "training/verification/step_recorder.h"

namespace accelerate {

/// Follows one run. All functions are called by the training thread. Ends the
/// process when enough updates are recorded.
class VerifiedSteps final : public UpdateObserver {
 public:
  VerifiedSteps(
      const RunContext& context,
      const RunCheckpoints& checkpoints,
      StepRecorder& recorder);

  /// Called before the engine's callbacks of a forward pass in training. In the
  /// first one, the run saves the weights of the model, and the reference loads
  /// them.
  void begin_forward(ModelContext& model);
  /// Called after these callbacks, when buffers are synchronised.
  void before_forward(const ModelContext& model);
  void after_forward(const ModelContext& model);
  /// `is_python` means that the Python package itself finds optimizers that
  /// were not prepared.
  void before_backward(
      const at::Tensor& loss,
      const std::optional<LossWeight>& weight,
      bool is_python);
  void after_backward() { is_in_backward_ = false; }
  void before_update(OptimizerStep& optimizer) override;
  void after_update(OptimizerStep& optimizer) override;

 private:
  /// "model" if `name` is that of the first model's tensor, else with the model
  /// as a prefix.
  std::string name_of(const ModelContext& model, const std::string& name) const;
  /// A record of what this rank has of a parameter, or of its gradient.
  verify::TensorRecord record_of(
      const ModelContext& model,
      size_t index,
      const at::Tensor& values) const;
  std::vector<verify::TensorRecord> parameters_of(
      const ModelContext& model) const;
  std::vector<verify::TensorRecord> all_parameters() const;
  void save_initial(const ModelContext& model) const;
  void load_initial(ModelContext& model) const;
  void check_leaves(const at::Tensor& loss);
  /// Detects gradients that other backward passes have computed and the program
  /// has not cleared.
  void check_gradients();
  /// Detects weights that changed although no prepared optimizer made a step.
  void check_weights(bool is_python);
  int64_t peak_memory() const;
  [[noreturn]] void end() const;

  const RunContext& context_;
  const RunCheckpoints& checkpoints_;
  StepRecorder& recorder_;
  /// The models whose first forward pass has begun.
  std::vector<const ModelContext*> begun_;
  /// The models whose buffers are in `next_`.
  std::vector<const ModelContext*> seen_;
  verify::UpdateRecord next_;
  std::vector<std::unique_ptr<Arrivals>> arrivals_;
  /// Whether `accelerator.backward()` runs.
  std::atomic<bool> is_in_backward_ = false;
  /// Protects the parameters that got gradients outside of it; autograd's
  /// threads write them.
  std::mutex mutex_;
  std::vector<at::Tensor> with_other_gradients_;
  /// The versions of a model's buffers before its forward pass.
  std::unordered_map<const ModelContext*, std::vector<int64_t>>
      buffer_versions_;
  /// Tensors that require gradients but belong to no prepared model, and their
  /// values.
  std::unordered_map<
      const c10::TensorImpl*,
      std::pair<at::Tensor, verify::Sketch>>
      foreign_;
  /// Whether such a tensor was reported.
  bool has_foreign_ = false;
  /// The parameters at the latest update or backward pass.
  std::vector<verify::TensorRecord> latest_;
  /// What the reference overwrites during an update.
  std::vector<double> own_rates_;
  /// The number of backward passes at the latest update of each optimizer.
  std::unordered_map<const OptimizerStep*, int64_t> num_backwards_;
};

} // namespace accelerate
