// SPDX-License-Identifier: Apache-2.0
// Loss scaling, which keeps small fp16 gradients from underflowing.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/state/stateful.h"

namespace accelerate {

/// The names and defaults are PyTorch's.
struct ACCELERATE_API GradScalerOptions {
  double init_scale = 65536;
  /// The scale is multiplied by this factor after `growth_interval` steps
  /// without overflow, and by `backoff_factor` after a step with overflow.
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

/// Multiplies the loss by a scale, divides the gradients by this scale before
/// the step, and skips steps whose gradients are not finite. An `Accelerator`
/// with fp16 creates a scaler. If you use a scaler directly, it works like
/// PyTorch's:
///
///     scaler.scale(loss).backward();
///     scaler.step(optimizer);
///     scaler.update();
///
/// Use it from one thread. The scale is stored on the device of the loss. Only
/// `found_inf`, `step`, `current_scale` and `state_dict` wait for the device.
class ACCELERATE_API GradScaler : public Stateful {
 public:
  /// Replaces each element of a tensor of flags (0 or 1) with its maximum over
  /// all ranks, so that all ranks skip the same steps.
  using Agreement = std::function<void(at::Tensor&)>;

  /// Throws `UsageError` if a factor is out of range.
  explicit GradScaler(GradScalerOptions options = {}, Agreement agree = {});

  at::Tensor scale(const at::Tensor& loss);

  /// Divides the gradients of `parameters` by the scale and checks that they
  /// are finite. `owner` identifies their optimizer. A second call with the
  /// same owner before `update` has no effect. Does nothing if no rank has
  /// gradients for this owner. Throws `UsageError` on fp16 gradients, whose
  /// range is too small for the divided values.
  void unscale(const void* owner, const std::vector<at::Tensor>& parameters);
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Like `unscale`, but for gradients that are not the `grad()` of a
  /// parameter.
  void unscale_gradients(
      const void* owner,
      const std::vector<at::Tensor>& gradients);
  /// Whether any gradient of `owner` was not finite, on any rank.
  bool found_inf(const void* owner) const;
  /// The result of `found_inf` as a tensor with one float, 0 or 1, which the
  /// device may still be computing. Undefined if no gradients of `owner` were
  /// unscaled.
  at::Tensor overflow_of(const void* owner) const;

  /// Whether gradients of `owner` were unscaled since the last `update`.
  bool is_unscaled(const void* owner) const;
  /// Forgets that gradients of `owner` were unscaled. `update` then ignores
  /// these gradients, and the next `unscale` processes them again.
  void forget(const void* owner);
  /// Multiplies unscaled gradients by the scale, before a backward pass that
  /// adds scaled gradients to them.
  void scale_again(const std::vector<at::Tensor>& gradients) const;

  /// Unscales the gradients if this has not been done yet, and steps if all of
  /// them are finite. Returns whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);
  /// Increases or decreases the scale. Call it after all optimizers have
  /// stepped. Does nothing if no gradients were unscaled since the last call.
  void update();

  double current_scale() const;
  /// The state as it would be after a call to `update`. The names are
  /// PyTorch's.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void put_on(c10::Device device);
  void update(at::Tensor& scale, at::Tensor& growth_tracker) const;

  GradScalerOptions options_;
  Agreement agree_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  /// For each owner whose gradients were unscaled: 1 if a gradient was not
  /// finite.
  std::map<const void*, at::Tensor> unscaled_;
};

} // namespace accelerate
