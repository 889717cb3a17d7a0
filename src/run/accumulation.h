// SPDX-License-Identifier: Apache-2.0
// Where windows of micro-batches end, and how their losses are weighted.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "accelerate/accelerator_options.h"
#include "accelerate/accumulate.h"
#include "accelerate/state_registry.h"
#include "parallel/join.h"
#include "run/model_context.h"

namespace accelerate {

/// What ranks tell each other before their gradients meet.
inline constexpr const char* kPlainBackward = "backward";
inline constexpr const char* kWeightedBackward = "backward with a weight";

/// The name of its state.
inline constexpr const char* kAccumulation = "accumulation";

/// Its state are the windows under way, with the gradients of their models as
/// this rank holds them; without windows those that no step has used yet, as
/// loops have them that count by themselves.
class ACCELERATE_API Accumulation : public Stateful {
 public:
  /// `num_steps` is what came of the one in `options` and its variable. Models
  /// are named in the state as `registry` names them. Throws `ConfigError` on
  /// less than one step.
  Accumulation(
      int64_t num_steps,
      const AccumulationOptions& options,
      std::shared_ptr<const StateRegistry> registry,
      std::shared_ptr<StepState> step_state);

  /// Begins a micro-batch of these models; holds their gradients back in
  /// `guard` where more follow. Throws `UsageError` where the guard of the one
  /// before still lives. Each set of models has a window of its own, so
  /// that models that take turns do not end each other's.
  void begin(
      StepState& step_state,
      std::vector<std::shared_ptr<ModelContext>> models,
      AccumulateGuard& guard);
  int64_t num_steps() const { return num_steps_; }
  /// Throws `ConfigError` on less than one step.
  void set_num_steps(int64_t num_steps);

  /// The loss to run backward from. Where it is weighted and the window ends,
  /// gradients that were added up so far are brought to the same scale. Where
  /// this rank trains alone, its own weights are all there are.
  at::Tensor weigh(
      const at::Tensor& loss,
      const std::optional<LossWeight>& weight,
      const StepState& step_state,
      StepReductions& reductions,
      bool is_alone);

  /// Losses without weight that were run backward without `weigh`.
  void note_backwards(int64_t count, bool ends);

  /// Micro-batches that wait for the end of their window, of these engines'
  /// models or of none.
  int64_t num_unfinished(const StepReductions::Engines& engines) const;

  StateDict state_dict() const override;
  /// Drops the gradients of all prepared models first. The models of the
  /// windows must be prepared before.
  void load_state_dict(const StateDict& state) override;
  /// The state between two updates, without gradients.
  static StateDict nothing();
  /// What each of `num_ranks` ranks goes on from, where others had the states
  /// `of_ranks`: its share of their gradients, so that a window that is ended
  /// by these ranks has the gradient that those would have given it. Nothing
  /// where there are no states, or windows differ.
  static std::optional<StateDict> joined(
      const std::vector<StateDict>& of_ranks,
      int num_ranks);

 private:
  struct Window {
    std::vector<std::weak_ptr<ModelContext>> models;
    std::weak_ptr<void> guard;
    int64_t num_begun = 0;
    int64_t num_backwards = 0;
    bool is_weighted = false;
    /// Of this rank: the sum of weights of the window, and what its losses were
    /// divided by until the sum is known.
    at::Tensor total;
    at::Tensor divisor;
  };
  using Models = std::vector<std::shared_ptr<ModelContext>>;
  static std::vector<const ModelContext*> key_of(const Models& models);
  void drop_dead_windows();
  /// Windows and the gradients of all models, in a window or not.
  void drop_everything();
  void save(const Window& window, StateDict& state) const;
  void load_window(const StateDict& state);

  int64_t num_steps_ = 1;
  bool sync_with_dataloader_;
  bool sync_each_batch_;
  std::shared_ptr<const StateRegistry> registry_;
  std::shared_ptr<StepState> step_state_;
  /// By the models of `begin`, in the order of their addresses.
  std::map<std::vector<const ModelContext*>, Window> windows_;
  Window* current_;
};

} // namespace accelerate
