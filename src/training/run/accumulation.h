// SPDX-License-Identifier: Apache-2.0
// Decides when an update is due, and how losses are weighted.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "accelerate/accelerator_options.h"
#include "accelerate/state/state_registry.h"
#include "accelerate/training/accumulate.h"
#include "core/base/internal.h"
#include "training/parallel/join.h"
#include "training/run/model_context.h"

namespace accelerate {

/// The description that ranks compare before they synchronise gradients.
inline constexpr const char* kPlainBackward = "backward";
inline constexpr const char* kWeightedBackward = "backward with a weight";

/// The name of the state of an `Accumulation`.
inline constexpr const char* kAccumulation = "accumulation";

/// Its state consists of the incomplete accumulations, with the gradients of
/// their models as this rank has them. Without an incomplete accumulation, the
/// state contains gradients that no step has used yet, for loops that count
/// micro-batches themselves.
class ACCELERATE_INTERNAL Accumulation : public Stateful {
 public:
  /// `num_steps` is the resolved value of the option and its environment
  /// variable. `registry` provides the names of models in the state. Throws
  /// `ConfigError` if `num_steps` is less than one.
  Accumulation(
      int64_t num_steps,
      const AccumulationOptions& options,
      std::shared_ptr<const StateRegistry> registry,
      std::shared_ptr<StepState> step_state);

  /// Starts a micro-batch of these models. If more micro-batches follow,
  /// `guard` holds their gradients back. Throws `UsageError` if the previous
  /// guard still exists. Each set of models accumulates separately, so models
  /// that take turns do not end each other's accumulation.
  void begin(
      StepState& step_state,
      std::vector<std::shared_ptr<ModelContext>> models,
      AccumulateGuard& guard);
  int64_t num_steps() const { return num_steps_; }
  /// Throws `ConfigError` if `num_steps` is less than one.
  void set_num_steps(int64_t num_steps);

  /// Returns the loss to run backward from. If the loss is weighted and the
  /// accumulation ends, the gradients accumulated so far are brought to the
  /// same scale. If this rank trains alone, only its own weights are used.
  at::Tensor weigh(
      const at::Tensor& loss,
      const std::optional<LossWeight>& weight,
      const StepState& step_state,
      StepReductions& reductions,
      bool is_alone);

  /// Records backward passes of unweighted losses that did not go through
  /// `weigh`.
  void note_backwards(int64_t count, bool ends);

  /// The number of micro-batches in incomplete accumulations of these engines'
  /// models, or of no models.
  int64_t num_unfinished(const StepReductions::Engines& engines) const;

  StateDict state_dict() const override;
  /// First drops the gradients of all prepared models. Prepare the models of
  /// the accumulations before this call.
  void load_state_dict(const StateDict& state) override;
  /// The state between two updates, without gradients.
  static StateDict nothing();
  /// The state from which each of `num_ranks` ranks resumes if other ranks had
  /// the states `of_ranks`. Each rank gets a share of their gradients, so that
  /// completing the accumulation gives the same gradient. Empty if there are no
  /// states, or accumulations differ.
  static std::optional<StateDict> joined(
      const std::vector<StateDict>& of_ranks,
      int num_ranks);

 private:
  struct Pending {
    std::vector<std::weak_ptr<ModelContext>> models;
    std::weak_ptr<void> guard;
    int64_t num_begun = 0;
    int64_t num_backwards = 0;
    bool is_weighted = false;
    /// The sum of weights of the accumulation on this rank, and the divisor of
    /// its losses until the sum over all ranks is known.
    at::Tensor total;
    at::Tensor divisor;
  };
  using Models = std::vector<std::shared_ptr<ModelContext>>;
  static std::vector<const ModelContext*> key_of(const Models& models);
  void drop_dead_accumulations();
  /// Drops all accumulations, and the gradients of all models.
  void drop_everything();
  void save(const Pending& pending, StateDict& state) const;
  void load_accumulation(const StateDict& state);

  int64_t num_steps_ = 1;
  bool sync_with_dataloader_;
  bool sync_each_batch_;
  std::shared_ptr<const StateRegistry> registry_;
  std::shared_ptr<StepState> step_state_;
  /// The accumulations. The key is the list of models passed to `begin`,
  /// ordered by address.
  std::map<std::vector<const ModelContext*>, Pending> pending_;
  Pending* current_;
};

} // namespace accelerate
