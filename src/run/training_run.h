// SPDX-License-Identifier: Apache-2.0
// The part of an Accelerator that is independent of the language of models and
// optimizers. The C++ facade and the Python package adapt it.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerate/accelerator_options.h"
#include "accelerate/collectives.h"
#include "accelerate/join.h"
#include "accelerate/safetensors_index.h"
#include "accelerate/state_registry.h"
#include "accelerate/step_times.h"
#include "optim/optimizer_step.h"
#include "optim/scheduler_moves.h"
#include "parallel/gradient_norm.h"
#include "run/accumulation.h"
#include "run/assemble.h"
#include "run/loss_watch.h"
#include "state/state_files.h"

namespace accelerate {

/// The state of trackers. A run may have trackers or not, both when saving and
/// when loading.
inline constexpr const char* kTrackersState = "trackers";

class BackgroundSave;
class HostCopies;
class RankJournal;
struct StepNotes;
class StreamScope;

/// See `find_checkpoint`.
inline constexpr const char* kLatestCheckpoint = "latest";

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
  std::vector<std::string> meetings = {};
  int64_t num_collectives = 0;
  /// `CaptureLayer::shares_buffers_next` at the end of the step.
  std::vector<std::pair<std::weak_ptr<ModelContext>, bool>> shares_buffers = {};
};

class ACCELERATE_API TrainingRun {
 public:
  /// `step_state` may be shared with other runs of this process. Throws as
  /// `Accelerator`.
  TrainingRun(
      AcceleratorOptions options,
      const EnvLookup& env,
      std::shared_ptr<StepState> step_state = std::make_shared<StepState>());
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  const AcceleratorOptions& options() const { return options_; }
  const ProcessTopology& topology() const { return assembly_.topology; }
  const ProcessGroup& group() const { return assembly_.group; }
  const Mesh& mesh() const { return assembly_.mesh; }
  c10::Device device() const { return assembly_.device; }
  Precision precision() const { return assembly_.precision; }
  /// Whether expensive checks are enabled; see `AcceleratorOptions`.
  bool debug() const { return assembly_.debug; }
  DistributedType distributed_type() const;
  const std::shared_ptr<StepState>& step_state() const { return step_state_; }
  const std::shared_ptr<GradScaler>& scaler() const { return scaler_; }

  /// Preparing has two phases: all objects of one call are passed first, in any
  /// order, then `wire` connects them. `prepare` may be called several times.
  ///
  /// A model must already be on its device, except for its parameters if the
  /// run `places_parts` and it will be trained. In `evaluation_mode` its
  /// gradients are never synchronised. Errors contain its `type`. Throws
  /// `UsageError` on fp16 parameters with fp16.
  std::shared_ptr<ModelContext> prepare_model(
      ParameterSet model,
      std::string type,
      bool evaluation_mode = false);
  /// Whether `prepare_model` shards parameters where they are and moves each
  /// rank's shard to its device, so that the whole model need not fit there.
  bool places_parts() const;
  /// From now on, gradients of a model that was prepared in evaluation mode are
  /// synchronised.
  void train_evaluated(const std::shared_ptr<ModelContext>& model);
  std::shared_ptr<OptimizerStep> prepare_optimizer(
      std::unique_ptr<OptimizerAdapter> optimizer);
  /// Connects optimizers with the engines of the models whose parameters they
  /// hold; they train the tensors that these return. Throws `UsageError` if the
  /// engine trains other tensors and an optimizer already has state for the
  /// model's own.
  void wire();

  /// All objects of this run with state, by name: `model`, `engine`,
  /// `optimizer`, `scheduler`, `loader`, `scaler`, `generator_cpu`, ...
  const std::shared_ptr<StateRegistry>& state() const { return state_; }

  struct SaveWith {
    /// What a language writes itself.
    struct Extra {
      /// Objects to skip, because their state is in the files.
      std::set<std::string> left_out = {};
      /// Names in the folder that the manifest must list.
      std::set<std::string> files = {};
    };
    /// Called before anything is written, with the folder that will become the
    /// checkpoint; may write files there.
    std::function<Extra(const std::filesystem::path& folder)> extra = {};
    /// A collective, which fails on all ranks if it fails on one. Otherwise
    /// ranks do not wait for each other: the checkpoint is complete with the
    /// main process's part, and other ranks add theirs.
    bool is_of_all = false;
    /// Return when everything is copied to separate host memory, and write in
    /// the background.
    bool asynchronous = false;
    /// How many numbered checkpoints to keep in the parent folder, once this
    /// one is complete.
    std::optional<int64_t> total_limit = {};
  };
  /// Makes `folder` a checkpoint of everything in `state()`. Throws
  /// `SystemError`, and then leaves an older checkpoint unchanged. First waits
  /// for a save in progress and rethrows its error.
  void save_state(const std::filesystem::path& folder, const SaveWith& with);
  /// Blocks until asynchronous saves have finished. Rethrows the error of a
  /// failed one, once.
  void wait_for_save() const;
  /// As above on all ranks; if it fails on one, it throws on all. Afterwards
  /// everything saved before on any rank is complete. For ranks that save
  /// without waiting for each other, before they look for a checkpoint to load.
  /// Collective.
  void wait_for_saves_of_all() const;
  /// The name of the saving job; the same on all ranks.
  const std::string& job() const { return job_; }
  /// Combines errors of ranks (null: none) while they prepare to load, as
  /// `fail_together` does.
  void fail_load_together(const std::exception_ptr& own) const;
  /// Restores all objects except `without`. Collective: each rank verifies what
  /// it loads, and none changes anything unless all of them can load. Waits for
  /// saves as `wait_for_saves_of_all`. Returns lines for the user. Throws
  /// `DataError` on damaged files and `UsageError` if the run consists of other
  /// objects, the same on all ranks.
  std::vector<std::string> load_state(
      const std::filesystem::path& folder,
      const std::set<std::string>& without = {});
  /// Whether any rank was asked to end soon; the same on all ranks. Collective.
  bool should_stop() const;
  /// The default folder of the next checkpoint. Collective.
  std::filesystem::path next_checkpoint() const;
  using Complain = std::function<void(const std::string& what)>;
  /// The newest checkpoint in the options' folder whose bytes are all intact;
  /// calls `complain` for newer ones that are not. Checks on this rank only.
  std::optional<std::filesystem::path> latest_checkpoint(
      const Complain& complain = {}) const;
  /// The newest checkpoint in `parent` that is intact on every rank; the same
  /// on all. Collective.
  std::optional<std::filesystem::path> latest_of_all(
      const std::filesystem::path& parent,
      const Complain& complain) const;
  /// See `Accelerator`. `order` is that of the tensors in the files; sorted by
  /// name if it is empty.
  void save_model(
      const ModelContext& model,
      const std::filesystem::path& folder,
      const safetensors::SaveOptions& options,
      const std::vector<std::string>& order = {}) const;
  /// Whether this process writes what only one process, or one per machine,
  /// writes.
  bool is_saving_main() const;
  /// `kLatestCheckpoint` means `latest_of_all`, unless a folder on any rank has
  /// that name. It is then a collective.
  std::filesystem::path find_checkpoint(
      const std::filesystem::path& folder,
      const Complain& complain) const;

  /// What to do about a loss of a model that was called without its context, or
  /// of no prepared model: by default it is a `UsageError`; otherwise
  /// `complain` is called once per model. A single process then does not check.
  void on_raw_loss(Complain complain) { complain_ = std::move(complain); }

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
  int64_t num_accumulation_steps() const { return accumulation_->num_steps(); }
  void set_num_accumulation_steps(int64_t num_steps) {
    accumulation_->set_num_steps(num_steps);
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
  /// The effect of a call of a scheduler's `step` in this run, which depends on
  /// accumulation, the number of processes, and `scheduler_stepping`.
  SchedulerMoves scheduler_moves(SchedulerCall call) const;

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
  bool is_settled() const;
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
  size_t tensor_places() const;

  void set_trigger() { trigger_ = true; }
  bool check_trigger();
  /// The rows of all ranks without repeats (`gather_for_metrics`).
  std::vector<at::Tensor> gather_real(const detail::Leaves& leaves) const;
  /// How many of `size` rows or objects count; they come first. `are_copies`:
  /// they are copies of one value. See `BatchFacts`.
  int64_t num_real(int64_t size, bool are_copies = false) const;
  /// The message about `BatchFacts::mixes_repeats`, if it applies.
  std::optional<std::string> mixed_repeats(int64_t size) const;
  /// The rows of a tensor that count. Equal rows of floating-point values are
  /// copies of one value.
  at::Tensor real_rows(const at::Tensor& values) const;
  /// The steps of the calling thread since this run was created.
  StepTimes step_times() const;
  /// Prints what limits the speed of the run, once, if the options request it;
  /// called automatically at the end of a run.
  void say_step_times();
  /// From now on, writes the steps of the calling thread into a run's folder,
  /// until the run ends: see `RankJournal`.
  void keep_journal(const std::filesystem::path& folder);
  void end_journal();
  /// Leaves the group. Finally throws as `wait_for_save`.
  void shut_down();

 private:
  static void set_shares_buffers(
      const std::vector<std::pair<std::weak_ptr<ModelContext>, bool>>& shares);
  /// The progress of the run, which distinguishes parts of checkpoints.
  struct Progress final : Stateful {
    int64_t num_backwards = 0;
    StateDict state_dict() const override;
    void load_state_dict(const StateDict& state) override;
  };
  struct PendingSave;
  /// Creates the folder, and collects what will be written there.
  void begin_save(
      const std::filesystem::path& folder,
      const SaveWith& with,
      PendingSave& save);
  struct LoadedState {
    StatesByName states = {};
    /// Objects that are not changed.
    std::set<std::string> kept = {};
    std::vector<std::string> warnings = {};
  };
  /// The verified state of a checkpoint that this rank will load.
  LoadedState read_own_state(
      const std::filesystem::path& folder,
      const std::set<std::string>& without) const;
  /// Skips optional objects that only the run or only the checkpoint has;
  /// returns a warning for each.
  std::vector<std::string> leave_optional(
      const std::filesystem::path& folder,
      StatesByName& states,
      std::set<std::string>& kept) const;
  /// Adds this rank's own state, or that of a different number of ranks;
  /// returns lines for the user.
  std::vector<std::string> add_own_part(
      const CheckpointReader& checkpoint,
      StateReader& reader,
      StatesByName& states) const;
  std::vector<std::string> add_parts_of_all(
      const CheckpointReader& checkpoint,
      StateReader& reader,
      StatesByName& states) const;
  /// Which elements of saved tensors the objects of the run need.
  StateReader::Needs slice_needs() const;
  void put_engine(
      const std::shared_ptr<ModelContext>& model,
      const EnginePlan& plan);
  /// Allows the model to get another engine if all its parameters were frozen
  /// and some are trained again.
  void let_renew(const std::shared_ptr<ModelContext>& model);
  /// Checks that the gradients of the latest backward were synchronised.
  void check_arrivals();
  /// Warns about training that works, but not as intended.
  void watch_loss(const at::Tensor& loss);
  void watch_for_optimizers();
  void warn(const std::string& what) const;
  /// Checks that all ranks have the same weights.
  void check_weights() const;
  /// Whether a backward now synchronises gradients of any model.
  bool sends_gradients() const;
  StepNotes step_notes() const;
  /// Updates the loss scale after the last steps; remaining gradients are
  /// rescaled.
  void settle_scale();
  /// Called during a step; writes a line of the journal if one is due.
  void note_step();
  void unscale_owners_of(const std::vector<at::Tensor>& parameters);
  /// Whether all optimizers of these parameters take reduced-precision copies,
  /// and with them a factor for gradients.
  bool is_trained_with_copies(
      const std::vector<at::Tensor>& parameters,
      const ParallelEngine& engine) const;
  /// The gradients of these parameters, or of what is trained instead, grouped
  /// by the engine that holds them. If they are only multiplied, an engine may
  /// return them in its own layout.
  std::vector<HeldGradients> held_gradients(
      const std::vector<at::Tensor>& parameters,
      bool are_multiplied) const;
  std::vector<std::shared_ptr<OptimizerStep>> living_optimizers() const;
  std::vector<std::shared_ptr<ModelContext>> living_models() const;

  AcceleratorOptions options_;
  Assembly assembly_;
  /// The same on all ranks; see `job_name.h`.
  std::string job_;
  std::shared_ptr<StepState> step_state_;
  std::shared_ptr<StateRegistry> state_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::shared_ptr<StepReductions> reductions_;
  std::shared_ptr<Accumulation> accumulation_;
  std::shared_ptr<GradScaler> scaler_;
  std::shared_ptr<InputWatch> input_watch_;
  std::vector<std::shared_ptr<Stateful>> generators_;
  std::vector<std::weak_ptr<ModelContext>> models_;
  /// Models whose engines need callbacks around a step.
  std::vector<std::weak_ptr<ModelContext>> seamed_models_;
  std::vector<std::weak_ptr<OptimizerStep>> optimizers_;
  bool has_models_ = false;
  Complain complain_;
  /// Whether a loss that depends on no prepared model has been reported.
  bool is_said_to_reach_none_ = false;
  /// Whether an optimizer's parameter that belongs to no model has been
  /// reported.
  bool is_unowned_said_ = false;
  LossWatch loss_watch_;
  /// Backwards that synchronised gradients.
  int64_t num_synchronised_ = 0;
  bool trigger_ = false;
  /// Of earlier runs in this thread.
  StepTimes times_before_;
  bool says_step_times_;
  std::shared_ptr<HostCopies> host_copies_;
  std::optional<ProcessGroup> saving_group_;
  std::unique_ptr<RankJournal> journal_;
  /// Declared last, so that it is destroyed before what it writes.
  std::unique_ptr<BackgroundSave> saving_;
};

} // namespace accelerate
