// SPDX-License-Identifier: Apache-2.0
// A prepared model, independent of its type.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "accelerate/state/stateful.h"
#include "accelerate/training/precision.h"
#include "core/base/internal.h"
#include "training/parallel/engine.h"
#include "training/parallel/join.h"
#include "training/run/input_watch.h"
#include "training/state/parameter_set.h"
#include "training/state/parameter_snapshot.h"
#include "training/state/sliced_state.h"
#include "training/state/step_state.h"

namespace accelerate {

/// Its state consists of the parameters and buffers under the model's names
/// (tied ones under the first); state of the engine alone belongs to the
/// engine.
struct ACCELERATE_INTERNAL ModelContext : Stateful, SliceHolder {
  std::shared_ptr<ParallelEngine> engine;
  ParameterSet model;
  /// The name of the model's class.
  std::string type;
  ParameterSnapshot as_prepared;
  std::shared_ptr<StepState> step_state;
  std::shared_ptr<const StepReductions> reductions;
  std::shared_ptr<InputWatch> inputs;
  c10::DeviceType device = c10::kCPU;
  Precision precision = Precision::kNo;
  /// If set, the dtype of the weights, to which fp32 inputs are converted;
  /// operators then do not autocast.
  std::optional<at::ScalarType> weights = {};
  /// Its gradients are never synchronised.
  bool is_for_evaluation = false;
  /// Reduced-precision outputs are converted to fp32.
  bool outputs_to_fp32 = true;
  /// Whether gradients of it that were not synchronised have been reported.
  bool is_said_to_stay = false;
  /// Creates another engine if this one is outdated; may be empty.
  std::function<void()> renew;
  /// Of the model's tensors, and of what is trained instead.
  std::unordered_map<const c10::TensorImpl*, size_t> index_of;

  /// Called before a forward. Throws `UsageError` if its gradients would be
  /// sent inside a join that does not include the model.
  void check_join() const;
  /// A tensor passed to a forward.
  void note_input(const at::Tensor& input) const;
  /// The model's buffers have been replaced by other tensors.
  void set_buffers(
      std::vector<std::string> names,
      std::vector<at::Tensor> buffers);
  /// Throws `UsageError` naming the first parameter that was added, removed or
  /// changed since the model was prepared. Takes over the current buffers: a
  /// forward may have filled, replaced or removed one.
  void prepare_again(ParameterSet now);

  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  /// All tensors are checked before the first is loaded.
  void load_state_dict(const StateDict& state) override;
  /// Whether ranks hold different parts of its parameters.
  bool is_spread() const;
  std::map<std::string, TensorPieces> pieces_needed(
      const StateDict& saved) const override;

 private:
  struct Matched {
    std::string name;
    at::Tensor tensor;
    StateValue value;
    bool is_parameter = false;
  };
  /// Throws `UsageError` naming all mismatches.
  std::vector<Matched> match(const StateDict& state) const;
};

} // namespace accelerate
