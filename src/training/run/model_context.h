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

class VerifiedSteps;

/// A prepared model. Its state consists of the parameters and buffers under the
/// model's names (tied ones under the first name). The engine saves its own
/// state separately.
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
  /// If set, the dtype of the weights. fp32 inputs are converted to it, and
  /// operators then do not autocast.
  std::optional<at::ScalarType> weights = {};
  /// Whether its gradients are never synchronised.
  bool is_for_evaluation = false;
  /// Whether reduced-precision outputs are converted to fp32.
  bool outputs_to_fp32 = true;
  /// Whether unsynchronised gradients of this model were reported.
  bool is_said_to_stay = false;
  /// Set under `accelerate verify`, otherwise null.
  std::shared_ptr<VerifiedSteps> verified;
  /// Creates another engine if this one is outdated. May be empty.
  std::function<void()> renew;
  /// The index of each tensor of the model, and of each tensor trained in its
  /// place.
  std::unordered_map<const c10::TensorImpl*, size_t> index_of;

  /// Called before a forward pass. Throws `UsageError` if gradients would be
  /// synchronised inside a join that does not include this model.
  void check_join() const;
  /// Records a tensor that was passed to a forward pass.
  void note_input(const at::Tensor& input) const;
  /// Called when the model's buffers were replaced with other tensors.
  void set_buffers(
      std::vector<std::string> names,
      std::vector<at::Tensor> buffers);
  /// Throws a `UsageError` that names the first parameter that was added,
  /// removed or changed since the model was prepared. Uses the current buffers
  /// from then on, because a forward pass may have filled, replaced or removed
  /// one.
  void prepare_again(ParameterSet now);

  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  /// Checks all tensors before it loads the first one.
  void load_state_dict(const StateDict& state) override;
  /// Whether ranks hold different parts of the model's parameters.
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
  /// Throws a `UsageError` that names all mismatches.
  std::vector<Matched> match(const StateDict& state) const;
};

} // namespace accelerate
