// SPDX-License-Identifier: Apache-2.0
// Saves and loads a whole run.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerate/files/safetensors_index.h"
#include "core/base/internal.h"
#include "training/run/run_context.h"
#include "training/state/state_files.h"

namespace accelerate {

class BackgroundSave;
class HostCopies;

/// The name of the trackers' state. It is optional: a run may add or remove
/// trackers between saving and loading.
inline constexpr const char* kTrackersState = "trackers";

/// See `find_checkpoint`.
inline constexpr const char* kLatestCheckpoint = "latest";

/// The checkpoints of a run. Python and C++ save and load through it.
class ACCELERATE_INTERNAL RunCheckpoints {
 public:
  /// Ranks agree on the name of the job.
  explicit RunCheckpoints(const RunContext& context);
  ~RunCheckpoints();
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  struct SaveWith {
    /// What a language adds to a checkpoint itself.
    struct Extra {
      /// Objects to skip, because their state is in the files.
      std::set<std::string> left_out = {};
      /// Names in the folder that the manifest must list.
      std::set<std::string> files = {};
    };
    /// Called before anything is written, with the folder that will become the
    /// checkpoint. It may write files there.
    std::function<Extra(const std::filesystem::path& folder)> extra = {};
    /// Fail on all ranks if one rank fails. Saving is then a collective.
    /// Otherwise, ranks do not wait for each other: the checkpoint is complete
    /// when the main process has written its state, and other ranks add theirs.
    bool is_of_all = false;
    /// Return when everything is copied to separate host memory, and write the
    /// files in the background.
    bool asynchronous = false;
    /// How many numbered checkpoints to keep in the parent folder after this
    /// one is complete.
    std::optional<int64_t> total_limit = {};
  };
  /// Makes `folder` a checkpoint of all objects of the run. First waits for a
  /// save in progress and rethrows its error. Throws `SystemError`; an older
  /// checkpoint in `folder` is then unchanged.
  void save_state(const std::filesystem::path& folder, const SaveWith& with);
  /// Blocks until asynchronous saves have finished. If one failed, rethrows its
  /// error once.
  void wait_for_save() const;
  /// Waits for the saves of all ranks. If a save fails on one rank, all ranks
  /// throw. Afterwards, everything that any rank saved before is complete. Call
  /// this before looking for a checkpoint if ranks save without waiting for
  /// each other. Collective.
  void wait_for_saves_of_all() const;
  /// The name of the saving job. It is the same on all ranks.
  const std::string& job() const { return job_; }
  /// Combines errors of ranks (null: none) while they prepare to load, like
  /// `fail_together`.
  void fail_load_together(const std::exception_ptr& own) const;
  /// Restores all objects except `without`. Collective. Each rank verifies the
  /// state that it loads, and no rank changes anything unless all ranks can
  /// load. First waits for saves, like `wait_for_saves_of_all`. Returns lines
  /// for the user. Throws `DataError` on damaged files and `UsageError` if the
  /// run consists of other objects, the same on all ranks.
  std::vector<std::string> load_state(
      const std::filesystem::path& folder,
      const std::set<std::string>& without = {});
  /// The default folder of the next checkpoint. Collective.
  std::filesystem::path next_checkpoint() const;
  using Complain = std::function<void(const std::string& what)>;
  /// The newest checkpoint in the options' folder that is intact. Calls
  /// `complain` for newer ones that are damaged. Checks on this rank only.
  std::optional<std::filesystem::path> latest_intact_on_this_rank(
      const Complain& complain = {}) const;
  /// The newest checkpoint in `parent` that is intact on every rank. The path
  /// is the same on all ranks. Collective.
  std::optional<std::filesystem::path> latest_intact_on_all_ranks(
      const std::filesystem::path& parent,
      const Complain& complain) const;
  /// See `Accelerator`. `order` is the order of tensors in the files. If it is
  /// empty, tensors are ordered by name.
  void save_model(
      const ModelContext& model,
      const std::filesystem::path& folder,
      const safetensors::SaveOptions& options,
      const std::vector<std::string>& order = {}) const;
  /// Whether this process writes the files that only one process, or one per
  /// machine, writes.
  bool is_saving_main() const;
  /// Resolves `kLatestCheckpoint` to `latest_intact_on_all_ranks`, unless a
  /// folder on any rank has that name. Collective in this case.
  std::filesystem::path find_checkpoint(
      const std::filesystem::path& folder,
      const Complain& complain) const;

  /// Call this after the last save. Waits for saves and throws the same errors
  /// as `wait_for_save`.
  void shut_down();

 private:
  struct PendingSave;
  /// Creates the folder and collects the state to write there.
  void begin_save(
      const std::filesystem::path& folder,
      const SaveWith& with,
      PendingSave& save);
  struct LoadedState {
    StatesByName states = {};
    /// Names of objects whose state stays as it is.
    std::set<std::string> kept = {};
    std::vector<std::string> warnings = {};
  };
  /// The verified state of a checkpoint that this rank will load.
  LoadedState read_own_state(
      const std::filesystem::path& folder,
      const std::set<std::string>& without) const;
  /// Skips optional objects that only the run or only the checkpoint has.
  /// Returns a warning for each.
  std::vector<std::string> leave_optional(
      const std::filesystem::path& folder,
      StatesByName& states,
      std::set<std::string>& kept) const;
  /// Adds this rank's own state, or the matching state from a different number
  /// of ranks. Returns lines for the user.
  std::vector<std::string> add_own_shard(
      const CheckpointReader& checkpoint,
      StateReader& reader,
      StatesByName& states) const;
  std::vector<std::string> add_all_shards(
      const CheckpointReader& checkpoint,
      StateReader& reader,
      StatesByName& states) const;
  /// Which elements of saved tensors the objects of the run need.
  StateReader::Needs slice_needs() const;

  const RunContext& context_;
  /// The same on all ranks. See `job_name.h`.
  std::string job_;
  std::shared_ptr<HostCopies> host_copies_;
  std::optional<ProcessGroup> saving_group_;
  /// Declared last, so that it is destroyed before the members that it uses.
  std::unique_ptr<BackgroundSave> saving_;
};

} // namespace accelerate
