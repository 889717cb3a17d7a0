// SPDX-License-Identifier: Apache-2.0
// What the parts of a training process tell `accelerate verify`. An ordinary
// process has no recorder.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/verify/process_record.h"

namespace accelerate {

/// The recorder of this process. `accelerate verify` runs a program in the
/// layout of the user, and as the reference in one process, whose loaders
/// collate the samples of all ranks into one batch. If the two disagree, it
/// runs the first step again with the batches of rank 0 on all ranks. Used by
/// the training thread.
class ACCELERATE_INTERNAL StepRecorder {
 public:
  /// Null in an ordinary process.
  static StepRecorder* get();

  explicit StepRecorder(std::filesystem::path folder);

  bool is_reference() const { return run_ == verify::kReferenceRun; }
  /// Whether all ranks get the batches of rank 0.
  bool has_same_batches() const { return run_ == verify::kSameBatchRun; }
  /// Whether the weights of the first run replace those of this run.
  bool loads_weights() const { return run_ != verify::kFirstRun; }
  /// The number of ranks whose samples a loader collates into one batch. 1
  /// except in the reference.
  int num_merged_ranks() const { return is_reference() ? num_merged_ : 1; }
  /// The number of updates of each optimizer to record.
  int64_t num_steps() const { return num_steps_; }
  /// Files that the run leaves for the reference.
  std::filesystem::path shared_file(const std::string& name) const {
    return folder_ / name;
  }

  /// Called by the first run of the process. Later calls have no effect.
  void begin(int rank, int num_ranks, int num_data_ranks);

  /// Call this when a loader has returned a batch with these tensors.
  void note_batch(const std::vector<at::Tensor>& leaves, int64_t num_samples);
  /// Call this when a loader that was not prepared has returned a batch.
  void note_raw_batch() { is_raw_ = true; }
  /// Call this when a module of the model has returned these tensors.
  void note_outputs(
      const std::string& module,
      const std::vector<at::Tensor>& outputs);
  /// Call this when a loop begins over a loader that distributes samples in
  /// this order to all ranks.
  void note_order(uint64_t hash);
  /// Called before a backward pass.
  void note_backward(double loss, double weight);
  void note_changed_buffer(const std::string& name);
  /// Records a mistake in the program, with a message.
  void note_problem(const std::string& text);
  /// Records why steps cannot be compared. With `only_excuses`, this matters
  /// only if the steps disagree.
  void note_obstacle(const std::string& text, bool only_excuses = true);

  void add_initial(const std::vector<verify::TensorRecord>& tensors);
  /// Adds the micro-batches since the last update.
  void add_update(verify::UpdateRecord update);
  int64_t num_updates() const { return num_updates_; }
  /// The update of the run with the index `num_updates()`, for the reference.
  /// Null if the run made fewer.
  const verify::UpdateRecord* expected_update() const;

  /// Also watches torch's generator of this device.
  void watch_generator(c10::Device device);

 private:
  verify::RecordWriter& writer();
  /// A hash of the states of torch's generators.
  uint64_t generator_hash() const;

  std::filesystem::path folder_;
  std::string run_;
  int num_merged_ = 0;
  int64_t num_steps_ = 0;
  std::unique_ptr<verify::RecordWriter> writer_;
  /// What happened before `begin`.
  std::vector<std::string> early_problems_;
  std::vector<verify::Obstacle> early_obstacles_;
  std::optional<verify::ProcessRecord> expected_;
  std::vector<c10::Device> devices_;
  uint64_t generators_at_batch_ = 0;
  bool has_batch_ = false;
  bool is_raw_ = false;
  /// The latest batches since the last backward pass.
  std::vector<verify::MicroBatchRecord> next_;
  std::vector<verify::MicroBatchRecord> batches_;
  std::vector<std::string> changed_buffers_;
  int64_t num_updates_ = 0;
};

/// The machine epsilon of a dtype. 0 for integers.
ACCELERATE_INTERNAL double epsilon_of(at::ScalarType type);

} // namespace accelerate
