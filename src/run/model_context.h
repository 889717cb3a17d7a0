// SPDX-License-Identifier: Apache-2.0
// A prepared model without its type.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "accelerate/precision.h"
#include "accelerate/stateful.h"
#include "parallel/engine.h"
#include "parallel/join.h"
#include "run/input_watch.h"
#include "state/parameter_set.h"
#include "state/parameter_snapshot.h"
#include "state/sliced_state.h"
#include "state/step_state.h"

namespace accelerate {

/// Its state are the parameters and buffers under the model's names, those that
/// are used twice under the first; what belongs to the engine alone is the
/// engine's.
struct ACCELERATE_API ModelContext : Stateful, SliceHolder {
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
  /// Where given, what the weights are themselves, and fp32 inputs become;
  /// operators then choose nothing.
  std::optional<at::ScalarType> weights = {};
  /// Its gradients never meet those of other ranks.
  bool is_for_evaluation = false;
  /// Outputs of reduced precision are handed out as fp32.
  bool outputs_to_fp32 = true;
  /// Whether gradients of it that did not meet were complained of.
  bool is_said_to_stay = false;
  /// Makes another engine where this one is outdated; may be empty.
  std::function<void()> renew;
  /// From the model's tensors, and from what is trained in their place.
  std::unordered_map<const c10::TensorImpl*, size_t> index_of;

  /// Before a forward. Throws `UsageError` where its gradients would be sent
  /// inside of a join that leaves the model out.
  void check_join() const;
  /// A tensor that a forward gets.
  void note_input(const at::Tensor& input) const;
  /// The model's buffers are other tensors from now on.
  void set_buffers(
      std::vector<std::string> names,
      std::vector<at::Tensor> buffers);
  /// Throws `UsageError` naming the first parameter that came, went or changed
  /// since the model was prepared. Buffers are from now on what they are: a
  /// forward may have filled one, replaced it or put it away.
  void prepare_again(ParameterSet now);

  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  /// All tensors are compared before the first is loaded.
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
  /// Throws `UsageError` naming all that do not fit.
  std::vector<Matched> match(const StateDict& state) const;
};

} // namespace accelerate
