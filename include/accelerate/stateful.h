// SPDX-License-Identifier: Apache-2.0
// Objects that can be stopped and gone on with.
#pragma once

#include "accelerate/export.h"
#include "accelerate/state_dict.h"

namespace accelerate {

/// Anything whose state belongs to a training run. Objects of your own take
/// part by deriving from it and joining `Accelerator::state()`.
///
///     struct Counter : accelerate::Stateful {
///       int64_t seen = 0;
///       accelerate::StateDict state_dict() const override {
///         accelerate::StateDict state;
///         state.set("seen", seen);
///         return state;
///       }
///       void load_state_dict(const accelerate::StateDict& state) override {
///         seen = state.get<int64_t>("seen");
///       }
///     };
class ACCELERATE_API Stateful {
 public:
  virtual ~Stateful();
  /// All that the object needs to go on. Tensors may be shared with it.
  virtual StateDict state_dict() const = 0;
  /// Throws where `load_state_dict` would refuse this state, and changes
  /// nothing. All objects of a run are asked before the first is loaded; by
  /// default there is nothing to check.
  virtual void check_state_dict(const StateDict& state) const;
  /// Goes on from there. Tensors are copied. Throws `UsageError` where the
  /// state is of another kind of object, which is then as it was.
  virtual void load_state_dict(const StateDict& state) = 0;
};

} // namespace accelerate
