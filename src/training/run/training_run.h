// SPDX-License-Identifier: Apache-2.0
// The part of an Accelerator that is independent of the language of models and
// optimizers. The C++ facade and the Python package adapt it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/distributed/join.h"
#include "core/base/internal.h"
#include "training/optim/scheduler_moves.h"
#include "training/parallel/gradient_norm.h"
#include "training/run/batch_rows.h"
#include "training/run/recorded_steps.h"
#include "training/run/run_checkpoints.h"
#include "training/run/run_context.h"
#include "training/run/step_checks.h"
#include "training/run/step_report.h"
#include "training/run/verified_steps.h"

namespace accelerate {

class ACCELERATE_INTERNAL TrainingRun {
 public:
  /// `step_state` may be shared with other runs of this process. Throws the
  /// same errors as `Accelerator`.
  TrainingRun(
      AcceleratorOptions options,
      const EnvLookup& env,
      std::shared_ptr<StepState> step_state = std::make_shared<StepState>());
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  const AcceleratorOptions& options() const { return context_.options; }
  const ProcessTopology& topology() const { return context_.assembly.topology; }
  const ProcessGroup& group() const { return context_.assembly.group; }
  const Mesh& mesh() const { return context_.assembly.mesh; }
  c10::Device device() const { return context_.assembly.device; }
  Precision precision() const { return context_.assembly.precision; }
  /// Whether expensive checks are enabled. See `AcceleratorOptions`.
  bool debug() const { return context_.assembly.debug; }
  DistributedType distributed_type() const;
  const std::shared_ptr<StepState>& step_state() const {
    return context_.step_state;
  }
  const std::shared_ptr<GradScaler>& scaler() const { return context_.scaler; }

  /// The classes of a run that other code uses directly.
  RunCheckpoints& checkpoints() { return checkpoints_; }
  const RunCheckpoints& checkpoints() const { return checkpoints_; }
  StepReport& report() { return report_; }
  const StepReport& report() const { return report_; }
  RecordedSteps& recorded_steps() { return recorded_steps_; }
  const BatchRows& batch_rows() const { return batch_rows_; }

  /// Preparing has two phases. First, all objects of one call are passed, in
  /// any order. Then, `wire` connects them. `prepare` may be called several
  /// times.
  ///
  /// A model must already be on its device. Its parameters may still be
  /// elsewhere if the run `shards_parameters` and the model will be trained. In
  /// `evaluation_mode` its gradients are never synchronised. Error messages
  /// contain its `type`. Throws `UsageError` on fp16 parameters with fp16.
  std::shared_ptr<ModelContext> prepare_model(
      ParameterSet model,
      std::string type,
      bool evaluation_mode = false);
  /// Whether `prepare_model` shards parameters before they are on the device
  /// and moves only each rank's shard there, so that the whole model need not
  /// fit.
  bool shards_parameters() const;
  /// Starts synchronising the gradients of a model that was prepared in
  /// evaluation mode.
  void train_evaluated(const std::shared_ptr<ModelContext>& model);
  std::shared_ptr<OptimizerStep> prepare_optimizer(
      std::unique_ptr<OptimizerAdapter> optimizer);
  /// Connects optimizers with the engines of the models whose parameters they
  /// hold. The optimizers then train the tensors that the engines return.
  /// Throws `UsageError` if an engine trains other tensors and an optimizer
  /// already has state for the model's own.
  void wire();

  /// All objects of this run with state, by name: `model`, `engine`,
  /// `optimizer`, `scheduler`, `loader`, `scaler`, `generator_cpu`, ...
  const std::shared_ptr<StateRegistry>& state() const { return context_.state; }

  /// Whether any rank was asked to end soon. The result is the same on all
  /// ranks. Collective.
  bool should_stop() const;
  /// Sets what happens on a loss of a model that was called without its
  /// context, or a loss that depends on no prepared model. By default, this is
  /// a `UsageError`. If `complain` is set, it is called once per model instead,
  /// and a single process does not check.
  void on_raw_loss(StepChecks::Complain complain) {
    checks_.set_complain(std::move(complain));
  }

  using RunAutograd = std::function<void(const at::Tensor& loss)>;
  /// Divides or weights the loss, scales it, and calls `run` to compute
  /// gradients.
  void backward(
      const at::Tensor& loss,
      const BackwardOptions& options,
      const RunAutograd& run);
  AccumulateGuard begin_micro_batch(
      std::vector<std::shared_ptr<ModelContext>> models);
  JoinGuard begin_join(
      std::vector<ParallelEngine*> engines,
      JoinOptions options,
      bool even = false) const;
  int64_t num_accumulation_steps() const {
    return context_.accumulation->num_steps();
  }
  void set_num_accumulation_steps(int64_t num_steps) {
    context_.accumulation->set_num_steps(num_steps);
  }

  /// Does nothing during gradient accumulation.
  void unscale_gradients();
  /// See `Accelerator`.
  at::Tensor clip_grad_norm(
      const std::vector<at::Tensor>& parameters,
      double max_norm,
      double norm_type);
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double limit);
  bool optimizer_step_was_skipped() const;
  /// The effect of one call of a scheduler's `step` in this run. It depends on
  /// accumulation, the number of processes, and `scheduler_stepping`.
  SchedulerMoves scheduler_moves(SchedulerCall call) const;
  /// The number of processes whose batches a schedule per process counts. The
  /// reference of `accelerate verify` follows the schedule of all ranks.
  int num_scheduled_processes() const;

  void set_trigger() { trigger_ = true; }
  bool check_trigger();
  /// Leaves the group, then throws the same errors as `wait_for_save`.
  void shut_down();

 private:
  void put_engine(
      const std::shared_ptr<ModelContext>& model,
      const EnginePlan& plan);
  /// Allows the model to get another engine if all its parameters were frozen
  /// and some are trained again.
  void allow_new_engine(const std::shared_ptr<ModelContext>& model);
  void unscale_owners_of(const std::vector<at::Tensor>& parameters);
  /// Whether all optimizers of these parameters accept reduced-precision
  /// copies, together with a factor for gradients.
  bool is_trained_with_copies(
      const std::vector<at::Tensor>& parameters,
      const ParallelEngine& engine) const;
  /// The gradients of these parameters, or of the tensors that are trained in
  /// their place, grouped by the engine that holds them. If the caller only
  /// multiplies them, an engine may return them in its own layout.
  std::vector<HeldGradients> held_gradients(
      const std::vector<at::Tensor>& parameters,
      bool are_multiplied) const;

  RunContext context_;
  RunCheckpoints checkpoints_;
  StepReport report_;
  RecordedSteps recorded_steps_;
  BatchRows batch_rows_;
  StepChecks checks_;
  std::shared_ptr<InputWatch> input_watch_;
  /// Null in an ordinary run.
  std::shared_ptr<VerifiedSteps> verified_;
  std::vector<std::shared_ptr<Stateful>> generators_;
  bool has_models_ = false;
  bool trigger_ = false;
};

} // namespace accelerate
