// SPDX-License-Identifier: Apache-2.0
#include "training/verification/step_recorder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "accelerate/process.h"
#include "core/base/parse.h"
#include "core/base/stable_hash.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "training/random/generators.h"
#include "training/verification/no_dropout.h"
#include "training/verification/sketching.h"

namespace accelerate {
namespace {

int64_t number_of(const char* variable, int64_t by_default) {
  const auto text = system_env(variable);
  return text ? parse_number<int64_t>(*text).value_or(by_default) : by_default;
}

std::unique_ptr<StepRecorder> make_recorder() {
  const auto folder = system_env(variables::kVerifyFolder);
  return folder && !folder->empty() ? std::make_unique<StepRecorder>(*folder)
                                    : nullptr;
}

verify::LeafRecord leaf_of(const at::Tensor& leaf) {
  verify::LeafRecord record{.num_elements = leaf.numel()};
  record.num_valid = leaf.numel();
  if (leaf.numel() == 0 || leaf.is_complex()) {
    return record;
  }
  const auto values = leaf.detach();
  record.sum = values.cpu().to(at::kDouble).sum().item<double>();
  if (at::isIntegralType(values.scalar_type(), /*includeBool=*/true)) {
    constexpr int64_t kIgnored = -100;
    const auto numbers = values.cpu().to(at::kLong);
    const int64_t num_ignored = numbers.eq(kIgnored).sum().item<int64_t>();
    record.has_ignored = num_ignored > 0;
    record.is_mask =
        numbers.ge(0).logical_and(numbers.le(1)).all().item<bool>();
    record.num_valid = record.has_ignored ? leaf.numel() - num_ignored
                       : record.is_mask   ? numbers.sum().item<int64_t>()
                                          : leaf.numel();
  }
  return record;
}

} // namespace

double epsilon_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return 0x1p-52;
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return at::isIntegralType(type, true) ? 0 : 0x1p-23;
  }
}

StepRecorder* StepRecorder::get() {
  static const std::unique_ptr<StepRecorder> recorder = make_recorder();
  return recorder.get();
}

StepRecorder::StepRecorder(std::filesystem::path folder)
    : folder_(std::move(folder)),
      run_(system_env(variables::kVerifyRun).value_or(verify::kFirstRun)),
      num_merged_(
          static_cast<int>(number_of(variables::kVerifyMergedRanks, 0))),
      num_steps_(number_of(variables::kVerifySteps, 1)) {
  if (is_reference()) {
    expected_ = verify::read_process_record(
        verify::record_file(folder_ / verify::kFirstRun, 0));
  }
}

void StepRecorder::begin(int rank, int num_ranks, int num_data_ranks) {
  if (writer_) {
    return;
  }
  turn_dropout_off();
  writer_ = std::make_unique<verify::RecordWriter>(
      verify::record_file(folder_ / run_, rank));
  writer_->begin(rank, num_ranks, num_data_ranks);
  for (const auto& text : std::exchange(early_problems_, {})) {
    note_problem(text);
  }
  for (const auto& obstacle : std::exchange(early_obstacles_, {})) {
    writer_->add_obstacle(obstacle);
  }
  watch_generator(c10::Device(c10::kCPU));
}

void StepRecorder::watch_generator(c10::Device device) {
  if (std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
    devices_.push_back(device);
  }
}

uint64_t StepRecorder::generator_hash() const {
  uint64_t hash = 0;
  for (const auto& device : devices_) {
    const auto state = generator_state(default_generator(device));
    hash = hash * 31 + stable_hash(std::string_view(
                           static_cast<const char*>(state.const_data_ptr()),
                           state.nbytes()));
  }
  return hash;
}

void StepRecorder::note_batch(
    const std::vector<at::Tensor>& leaves,
    int64_t num_samples) {
  verify::MicroBatchRecord batch{.num_samples = num_samples};
  for (const auto& leaf : leaves) {
    batch.leaves.push_back(leaf_of(leaf));
  }
  // A step may use batches of two loaders. Earlier ones belong to an
  // evaluation.
  constexpr size_t kMostLoaders = 2;
  if (next_.size() == kMostLoaders) {
    next_.erase(next_.begin());
  }
  next_.push_back(std::move(batch));
  generators_at_batch_ = generator_hash();
  has_batch_ = true;
  is_raw_ = false;
}

void StepRecorder::note_outputs(
    const std::string& module,
    const std::vector<at::Tensor>& outputs) {
  verify::Sketch sketch;
  for (const auto& output : outputs) {
    sketch += sketch_of(output);
  }
  writer_->add_output({.name = module, .sketch = sketch});
}

void StepRecorder::note_order(uint64_t hash) {
  if (writer_) {
    writer_->add_order(std::to_string(hash));
  }
}

void StepRecorder::note_backward(double loss, double weight) {
  if (is_raw_) {
    note_problem(
        "The step trains on a batch of a loader that was not prepared, so each "
        "process reads all samples. Pass the loader to prepare()");
  }
  verify::MicroBatchRecord all{.loss = loss, .weight = weight};
  for (const auto& batch : std::exchange(next_, {})) {
    all.num_samples += batch.num_samples;
    all.leaves.insert(
        all.leaves.end(), batch.leaves.begin(), batch.leaves.end());
  }
  batches_.push_back(std::move(all));
  if (std::exchange(has_batch_, false) &&
      generator_hash() != generators_at_batch_) {
    note_obstacle(
        "The training step draws random numbers, such as noise, from torch's "
        "generators. A single process draws different numbers, so its steps "
        "differ");
  }
}

void StepRecorder::note_changed_buffer(const std::string& name) {
  if (std::find(changed_buffers_.begin(), changed_buffers_.end(), name) ==
      changed_buffers_.end()) {
    changed_buffers_.push_back(name);
  }
}

void StepRecorder::note_problem(const std::string& text) {
  if (writer_) {
    writer_->add_problem(text);
  } else {
    early_problems_.push_back(text);
  }
}

void StepRecorder::note_obstacle(const std::string& text, bool only_excuses) {
  const verify::Obstacle obstacle{.only_excuses = only_excuses, .text = text};
  if (writer_) {
    writer_->add_obstacle(obstacle);
  } else {
    early_obstacles_.push_back(obstacle);
  }
}

void StepRecorder::add_initial(
    const std::vector<verify::TensorRecord>& tensors) {
  writer_->add_initial(tensors);
}

void StepRecorder::add_update(verify::UpdateRecord update) {
  update.batches = std::exchange(batches_, {});
  update.changed_buffers = std::exchange(changed_buffers_, {});
  writer_->add_update(update);
  ++num_updates_;
}

const verify::UpdateRecord* StepRecorder::expected_update() const {
  const auto index = static_cast<size_t>(num_updates_);
  return expected_ && index < expected_->updates.size()
             ? &expected_->updates[index]
             : nullptr;
}

namespace {

// Programs without a seed start from other weights in each process and draw
// samples in another order. This runs before `main`, so a seed of the program
// comes later.
[[maybe_unused]] const bool is_seeded = [] {
  if (StepRecorder::get() == nullptr) {
    return false;
  }
  constexpr uint64_t kSeed = 20'240'229;
  at::manual_seed(
      kSeed + static_cast<uint64_t>(number_of(variables::kRank, 0)));
  return true;
}();

} // namespace

} // namespace accelerate
