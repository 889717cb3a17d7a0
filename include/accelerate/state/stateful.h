// SPDX-License-Identifier: Apache-2.0
// Objects whose state is saved in checkpoints.
#pragma once

#include "accelerate/export.h"
#include "accelerate/state/state_dict.h"

namespace accelerate {

/// An object whose state belongs to a training run. Derive your own classes
/// from it and add their objects to `Accelerator::state()`.
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
  /// Returns everything that the object needs to resume. Tensors may be shared
  /// with the object.
  virtual StateDict state_dict() const = 0;
  /// Throws if `load_state_dict` would reject this state, and does not change
  /// anything. Called on all objects of a run before the first one is loaded.
  /// By default, accepts everything.
  virtual void check_state_dict(const StateDict& state) const;
  /// Restores the state. Tensors are copied. Throws `UsageError` and leaves the
  /// object unchanged if the state belongs to a different kind of object.
  virtual void load_state_dict(const StateDict& state) = 0;
};

} // namespace accelerate
