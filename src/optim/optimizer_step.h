// SPDX-License-Identifier: Apache-2.0
// The step of a prepared optimizer, whatever language it comes from.
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
#include "accelerate/export.h"
#include "accelerate/grad_scaler.h"
#include "accelerate/optimizer_state.h"
#include "accelerate/state_registry.h"
#include "accelerate/stateful.h"
#include "parallel/engine.h"
#include "state/sliced_state.h"
#include "state/step_state.h"

namespace accelerate {

/// A tensor of an optimizer and the one to train in its place.
struct Replacement {
  std::string name;
  at::Tensor from;
  at::Tensor to;
};

/// An optimizer as the training step sees it.
class ACCELERATE_API OptimizerAdapter {
 public:
  virtual ~OptimizerAdapter() = default;
  /// Of all groups.
  virtual std::vector<at::Tensor> parameters() = 0;
  virtual size_t num_groups() = 0;
  /// Trains other tensors from now on, in the same groups. Throws `UsageError`
  /// where the optimizer has state for one of them already.
  virtual void replace(const std::vector<Replacement>& replacements) = 0;
  /// Why it cannot train a slice of a parameter as it trains the whole; empty
  /// where it looks at each number by itself.
  virtual std::string why_no_slices() const { return {}; }
  /// Whether `step` may be given tensors on the device in the place of numbers
  /// of the host.
  virtual bool takes_scalars() const { return false; }
  /// Whether `step` writes `StepScalars::copies`.
  virtual bool takes_copies() const { return false; }
  /// What keeps its step from being recorded and replayed; empty where nothing
  /// does. From then on, what changes between steps must be on the device.
  virtual std::string prepare_capture() {
    return "the optimizer is not AdamW, Adam or SGD of accelerate::optim";
  }
  /// Of its groups, where a recorded step is to be given them as tensors.
  virtual std::vector<double> learning_rates() { return {}; }
  /// Whether a step now makes no state that it did not have.
  virtual bool has_all_state() { return true; }
  /// `scalars` holds only what it takes.
  virtual void step(const StepScalars& scalars) = 0;
  /// Forgets the gradients of `parameters()`. Those that live in a bucket can
  /// be dropped or filled, but not detached in place.
  virtual void zero_grad(Zeroing how) = 0;
  /// The state by the names of the tensors that it trains.
  virtual StateDict state(const NamedParameters& names) = 0;
  /// Throws where `load_state` would, and changes nothing.
  virtual void check_state(
      const NamedParameters& names,
      const StateDict& state) = 0;
  virtual void load_state(
      const NamedParameters& names,
      const StateDict& state) = 0;
};

/// Decides whether a call of `step` updates weights.
class ACCELERATE_API OptimizerStep : public Stateful, public SliceHolder {
 public:
  /// `scaler` may be empty. Schedulers join `registry`.
  OptimizerStep(
      std::unique_ptr<OptimizerAdapter> optimizer,
      std::shared_ptr<StepState> step_state,
      std::shared_ptr<GradScaler> scaler,
      std::weak_ptr<StateRegistry> registry = {});
  ~OptimizerStep() override;
  OptimizerStep(const OptimizerStep&) = delete;
  OptimizerStep& operator=(const OptimizerStep&) = delete;

  /// The engine of a model and those of its parameters that are to be trained
  /// here, under their names. The optimizer trains what the engine says in
  /// their place; the engine takes part in every step. Nothing for parameters
  /// that are not the optimizer's, or are wired already.
  void wire(
      const std::shared_ptr<ParallelEngine>& engine,
      const NamedParameters& parameters);

  /// What to do before a step that finds other groups than the last `wire`; may
  /// be empty.
  void on_new_groups(std::function<void()> wire) { wire_ = std::move(wire); }
  /// The first parameter that has a gradient and belongs to no prepared model,
  /// by its index. Looks in the first calls only.
  std::optional<size_t> unowned_parameter();

  /// Nothing while gradients are accumulated; else unscales, agrees with the
  /// other ranks on overflow, and steps where there is none. Waits for the
  /// device only with a scaler and an optimizer that does not take scalars.
  void step(StepScalars scalars = {});
  void zero_grad(Zeroing how = Zeroing::kDrop);
  /// Nothing while gradients are accumulated.
  void unscale();
  /// Before a backward: gradients that were unscaled and are still there. Those
  /// that no step has used yet count as never looked at.
  std::vector<at::Tensor> take_unscaled();

  /// Not any more when a micro-batch has begun that only adds up gradients.
  /// Throws `UsageError` while a step is recorded.
  bool did_step() const;
  /// Whether the latest `step` was left out because of an overflow. Waits for
  /// the device where nobody has before.
  bool was_skipped() const;
  /// Whether gradients are scaled, which those of a closure would stay.
  bool has_scaler() const { return scaler_ != nullptr; }
  OptimizerAdapter& optimizer() { return *optimizer_; }

  /// Saves the state of a scheduler that sets the rates of this optimizer, also
  /// if it is never prepared.
  void add_scheduler(const std::shared_ptr<Stateful>& scheduler);
  /// The optimizer itself was handed out, so that a scheduler of torch may set
  /// its rates.
  void note_lent();
  /// Whether rates have changed since then, without a scheduler whose state is
  /// saved.
  bool has_unsaved_schedule();

  /// For steps that are recorded: brings the rates of the groups to where these
  /// read them.
  void write_learning_rates(c10::Device device);
  /// Whether the step under way has come to its end, and the flag by which the
  /// device has left it out; undefined where nobody asks. Replays say so.
  bool is_done() const { return is_done_; }
  /// Calls of `step`, those in the middle of a window too.
  int64_t num_calls() const { return num_calls_; }
  const at::Tensor& overflow() const { return overflow_; }
  void set_done(bool is_done, at::Tensor overflow = {});
  /// Whether it has gradients of a scaled loss.
  bool holds_scaled_gradients();
  /// How often state was loaded, which then lies elsewhere.
  int64_t num_loads() const { return num_loads_; }

  /// By the names of `wire`. Moments of slices are `TensorSlice`s.
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  /// Drops gradients that belong to no prepared model.
  void load_state_dict(const StateDict& state) override;
  std::map<std::string, TensorPieces> pieces_needed(
      const StateDict& saved) const override;

 private:
  /// As the optimizer holds it: this rank's part of tensors.
  StateDict of_this_rank(const StateDict& saved) const;
  /// Parameters of one model.
  struct Part {
    std::weak_ptr<ParallelEngine> engine;
    std::vector<std::string> names;
    /// The model's tensors, and what is trained in their place.
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> trained;
  };

  /// Meets the engines of parameters in groups that were added.
  void follow_groups();
  bool syncs() const { return step_state_->sync_gradients(); }
  /// The gradients of all that it trains, as this rank holds them.
  std::vector<at::Tensor> gradients();
  /// Null where the tensor belongs to no prepared model, or to one that is
  /// gone.
  std::shared_ptr<ParallelEngine> engine_of(const at::Tensor& trained) const;
  NamedParameters names() const;
  /// Calls `work` with each entry of the state that belongs to a slice.
  template <class Work>
  void for_each_slice(const StateDict& state, Work&& work) const;

  std::unique_ptr<OptimizerAdapter> optimizer_;
  std::shared_ptr<StepState> step_state_;
  std::shared_ptr<GradScaler> scaler_;
  std::weak_ptr<StateRegistry> registry_;
  bool has_scheduler_ = false;
  /// Rates when the optimizer was lent; empty if it was not.
  std::vector<double> lent_rates_;
  std::vector<Part> parts_;
  /// Of the parts, each once.
  std::vector<std::weak_ptr<ParallelEngine>> engines_;
  /// From what is trained to its part.
  std::unordered_map<const c10::TensorImpl*, size_t> part_of_;
  std::function<void()> wire_;
  /// When `wire` was called last.
  size_t num_groups_ = 0;
  int num_looks_ = 0;
  bool is_done_ = false;
  int64_t num_calls_ = 0;
  int64_t num_loads_ = 0;
  /// As written last, on the host and on the device.
  std::vector<double> rates_;
  std::vector<at::Tensor> device_rates_;
  /// Of the gradients that were unscaled: whether a step has used them, and
  /// whether they were forgotten.
  bool are_used_ = false;
  bool are_dropped_ = false;
  /// Of the latest step: a number that is not 0 after an overflow, or nothing.
  mutable at::Tensor overflow_;
  mutable bool was_skipped_ = false;
};

/// Before a backward: grows or shrinks the scale where steps have used
/// gradients, and brings unscaled ones that the backward adds to back to it.
ACCELERATE_API void move_scale(
    GradScaler& scaler,
    const std::vector<std::shared_ptr<OptimizerStep>>& optimizers);

} // namespace accelerate
