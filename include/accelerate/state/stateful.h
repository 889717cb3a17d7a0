// SPDX-License-Identifier: Apache-2.0
// Objects whose state is saved in checkpoints.
#pragma once

#include "accelerate/export.h"
#include "accelerate/state/state_dict.h"

namespace accelerate {

/// An object whose state belongs to a training run. Derive your own objects
/// from it and add them to `Accelerator::state()`.
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
  /// Everything the object needs to resume. Tensors may be shared with it.
  virtual StateDict state_dict() const = 0;
  /// Throws if `load_state_dict` would reject this state, and changes nothing.
  /// Called on all objects of a run before the first is loaded. The default
  /// accepts everything.
  virtual void check_state_dict(const StateDict& state) const;
  /// Restores the state. Tensors are copied. Throws `UsageError` if the state
  /// belongs to a different kind of object, and leaves the object unchanged.
  virtual void load_state_dict(const StateDict& state) = 0;
};

} // namespace accelerate
