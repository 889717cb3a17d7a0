// SPDX-License-Identifier: Apache-2.0
// The step of a prepared optimizer, independent of the language.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerate/detail/step_scalars.h"
#include "accelerate/optim/optimizer_state.h"
#include "accelerate/state/state_registry.h"
#include "accelerate/state/stateful.h"
#include "accelerate/training/grad_scaler.h"
#include "core/base/internal.h"
#include "training/parallel/engine.h"
#include "training/state/sliced_state.h"
#include "training/state/step_state.h"

namespace accelerate {

/// A tensor of an optimizer, and the tensor to train in its place.
struct Replacement {
  std::string name;
  at::Tensor from;
  at::Tensor to;
};

/// An optimizer as the training step sees it.
class ACCELERATE_INTERNAL OptimizerAdapter {
 public:
  virtual ~OptimizerAdapter() = default;
  /// The parameters of all groups.
  virtual std::vector<at::Tensor> parameters() = 0;
  virtual size_t num_groups() = 0;
  /// Trains other tensors from then on, in the same groups. Throws `UsageError`
  /// if the optimizer already has state for a replaced one.
  virtual void replace(const std::vector<Replacement>& replacements) = 0;
  /// Called for a parameter that tensor-parallel ranks have divided in place.
  /// Keeps this rank's pieces of state of the whole tensor, which had the shape
  /// `whole`. Throws `UsageError` if that is impossible.
  virtual void divide_state(
      const std::string& /*name*/,
      const at::Tensor& /*parameter*/,
      const std::vector<int64_t>& /*whole*/,
      const TensorPieces& /*pieces*/) {}
  /// Why the optimizer cannot train slices of parameters as it trains whole
  /// parameters. Empty if it works element by element.
  virtual std::string why_no_slices() const { return {}; }
  /// Whether `step` accepts tensors on the device instead of host scalars.
  virtual bool takes_scalars() const { return false; }
  /// Whether `step` writes `StepScalars::copies`.
  virtual bool takes_copies() const { return false; }
  /// Prepares to record `step`. Returns why this is not possible, or an empty
  /// string if it is. From then on, all values that change between steps must
  /// be on the device.
  virtual std::string prepare_capture() {
    return "the optimizer is not AdamW, Adam or SGD from accelerate::optim";
  }
  /// The learning rates of the groups, if a recorded step should receive them
  /// as tensors.
  virtual std::vector<double> learning_rates() { return {}; }
  /// The learning rates of the groups, including those that are tensors. For
  /// `accelerate verify`, which also sets them.
  virtual std::vector<double> current_rates() { return learning_rates(); }
  virtual void set_current_rates(const std::vector<double>& rates) = 0;
  /// The sum over all groups, without learning rates that are tensors, because
  /// reading one could wait for a device.
  virtual double sum_of_learning_rates() {
    double sum = 0;
    for (const double rate : learning_rates()) {
      sum += rate;
    }
    return sum;
  }
  /// Whether a step at this point would create no new state.
  virtual bool has_all_state() { return true; }
  /// `scalars` contains only scalars that this optimizer accepts.
  virtual void step(const StepScalars& scalars) = 0;
  /// Clears the gradients of `parameters()`. Gradients in a bucket can be
  /// dropped or zeroed, but not detached in place.
  virtual void zero_grad(Zeroing how) = 0;
  /// The state, under the names of the trained tensors.
  virtual StateDict state(const NamedParameters& names) = 0;
  /// Throws if `load_state` would throw. Changes nothing.
  virtual void check_state(
      const NamedParameters& names,
      const StateDict& state) = 0;
  virtual void load_state(
      const NamedParameters& names,
      const StateDict& state) = 0;
};

class OptimizerStep;

/// Called around every update of the weights.
class UpdateObserver {
 public:
  virtual ~UpdateObserver() = default;
  /// Gradients are synchronised, unscaled and clipped.
  virtual void before_update(OptimizerStep& optimizer) = 0;
  virtual void after_update(OptimizerStep& optimizer) = 0;
};

/// Decides whether a call of `step` updates weights.
class ACCELERATE_INTERNAL OptimizerStep : public Stateful, public SliceHolder {
 public:
  /// `scaler` may be null. Schedulers are added to `registry`.
  OptimizerStep(
      std::unique_ptr<OptimizerAdapter> optimizer,
      std::shared_ptr<StepState> step_state,
      std::shared_ptr<GradScaler> scaler,
      std::weak_ptr<StateRegistry> registry = {});
  ~OptimizerStep() override;
  OptimizerStep(const OptimizerStep&) = delete;
  OptimizerStep& operator=(const OptimizerStep&) = delete;

  /// Connects a model's engine with parameters of the model that this optimizer
  /// may train, by name. The optimizer trains the tensors that the engine
  /// returns for them, and the engine takes part in every step. Ignores
  /// parameters that do not belong to the optimizer or are already connected.
  void wire(
      const std::shared_ptr<ParallelEngine>& engine,
      const NamedParameters& parameters);

  /// Sets a function to call before a step if groups were added since the last
  /// `wire`. It may be empty.
  void on_new_groups(std::function<void()> wire) { wire_ = std::move(wire); }
  /// `observer` may be null.
  void observe_updates(std::shared_ptr<UpdateObserver> observer) {
    observer_ = std::move(observer);
  }
  /// The index of the first parameter that has a gradient but belongs to no
  /// prepared model. Checks only in the first calls.
  std::optional<size_t> unowned_parameter();

  /// Does nothing during gradient accumulation. Otherwise unscales gradients,
  /// and steps unless any rank has an overflow. Waits for the device only with
  /// a scaler and an optimizer that does not accept scalars.
  void step(StepScalars scalars = {});
  void zero_grad(Zeroing how = Zeroing::kDrop);
  /// Does nothing during gradient accumulation.
  void unscale();
  /// Called before a backward pass: returns unscaled gradients that still
  /// exist. Gradients that no step has used are then treated as scaled again.
  std::vector<at::Tensor> take_unscaled();

  /// Whether the latest `step` updated the weights. False after the start of a
  /// micro-batch that only accumulates gradients. Throws `UsageError` while a
  /// step is recorded.
  bool did_step() const;
  /// Whether the latest `step` was skipped because of an overflow. Waits for
  /// the device on the first call.
  bool was_skipped() const;
  /// Whether gradients are scaled. Gradients from a closure would stay scaled.
  bool has_scaler() const { return scaler_ != nullptr; }
  OptimizerAdapter& optimizer() { return *optimizer_; }

  /// Saves the state of a scheduler that sets the learning rates of this
  /// optimizer, even if the scheduler is never prepared.
  void add_scheduler(const std::shared_ptr<Stateful>& scheduler);
  /// Records that user code has obtained the optimizer itself, so that a torch
  /// scheduler may set its learning rates.
  void note_shared();
  /// Whether learning rates have changed since `note_shared` without a
  /// scheduler whose state is saved.
  bool has_unsaved_schedule();

  /// For recorded steps: writes the groups' learning rates to the tensors that
  /// recorded steps read.
  void write_learning_rates(c10::Device device);
  /// Whether the current step was made. `set_done` also stores the flag by
  /// which the device has skipped it. Undefined if there is no flag. Replays
  /// call it.
  bool is_done() const { return is_done_; }
  /// The index in `StepState::UpdateCounts`. Empty if all gradients stay on
  /// this process.
  std::optional<size_t> index() const { return index_; }
  /// Whether it still has synchronised gradients, because `zero_grad` was not
  /// called since.
  bool holds_synchronised() const {
    return num_cleared_ != step_state_->num_synchronised();
  }
  /// The number of calls of `step`, including those during gradient
  /// accumulation.
  int64_t num_calls() const { return num_calls_; }
  const at::Tensor& overflow() const { return overflow_; }
  void set_done(bool is_done, at::Tensor overflow = {});
  /// Whether it has gradients of a scaled loss.
  bool holds_scaled_gradients();
  /// How often state was loaded. Loading moves the state to other addresses.
  int64_t num_loads() const { return num_loads_; }

  /// The state under the names passed to `wire`. Moments of slices are
  /// `TensorSlice`s.
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  /// Also drops gradients that belong to no prepared model.
  void load_state_dict(const StateDict& state) override;
  std::map<std::string, TensorPieces> pieces_needed(
      const StateDict& saved) const override;

 private:
  /// Converts a saved state to this rank's shards of its tensors.
  StateDict of_this_rank(const StateDict& saved) const;
  /// The parameters of one model.
  struct EngineParameters {
    std::weak_ptr<ParallelEngine> engine;
    std::vector<std::string> names;
    /// The model's tensors, and the tensors that are trained in their place.
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> trained;
  };

  /// Throws `UsageError` if the backward pass of a model failed.
  void check_gradients() const;
  /// Connects the engines of parameters in groups that were added.
  void follow_groups();
  bool syncs() const { return step_state_->sync_gradients(); }
  /// This rank's gradients of all tensors that the optimizer trains.
  std::vector<at::Tensor> gradients();
  /// Null if the tensor belongs to no prepared model, or the model is
  /// destroyed.
  std::shared_ptr<ParallelEngine> engine_of(const at::Tensor& trained) const;
  NamedParameters names() const;
  /// Calls `work` with each state entry that belongs to a slice.
  template <class Work>
  void for_each_slice(const StateDict& state, Work&& work) const;

  std::unique_ptr<OptimizerAdapter> optimizer_;
  std::shared_ptr<StepState> step_state_;
  std::shared_ptr<GradScaler> scaler_;
  std::weak_ptr<StateRegistry> registry_;
  bool has_scheduler_ = false;
  /// The learning rates when user code obtained the optimizer, or those loaded
  /// since. Empty if it never did.
  std::vector<double> rates_when_shared_;
  std::vector<EngineParameters> owned_;
  /// The engines in `owned_`, each once.
  std::vector<std::weak_ptr<ParallelEngine>> engines_;
  /// Maps trained tensors to their index in `owned_`.
  std::unordered_map<const c10::TensorImpl*, size_t> owner_of_;
  /// The index in `StepState::UpdateCounts`, if any of the engines synchronises
  /// gradients.
  std::optional<size_t> index_;
  /// `StepState::num_synchronised` at the last `zero_grad`.
  int64_t num_cleared_ = 0;
  std::function<void()> wire_;
  std::shared_ptr<UpdateObserver> observer_;
  /// The number of groups at the last call of `wire`.
  size_t num_groups_ = 0;
  int num_looks_ = 0;
  bool is_done_ = false;
  int64_t num_calls_ = 0;
  int64_t num_loads_ = 0;
  /// The learning rates last written, on the host and on the device.
  std::vector<double> rates_;
  std::vector<at::Tensor> device_rates_;
  /// Whether a step has used the unscaled gradients, and whether they were
  /// cleared.
  bool are_used_ = false;
  bool are_dropped_ = false;
  /// Whether the latest step had an overflow: nonzero if it had. Undefined if
  /// unknown.
  mutable at::Tensor overflow_;
  mutable bool was_skipped_ = false;
};

/// Call this before a backward pass. Grows or shrinks the scale if steps have
/// used gradients. Unscaled gradients that the backward pass adds to are scaled
/// again.
ACCELERATE_INTERNAL void move_scale(
    GradScaler& scaler,
    const std::vector<std::shared_ptr<OptimizerStep>>& optimizers);

} // namespace accelerate
