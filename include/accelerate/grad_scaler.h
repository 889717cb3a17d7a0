// SPDX-License-Identifier: Apache-2.0
// Keeps small fp16 gradients from vanishing.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/stateful.h"

namespace accelerate {

/// The names and defaults are PyTorch's.
struct ACCELERATE_API GradScalerOptions {
  double init_scale = 65536;
  /// The scale grows by this factor after `growth_interval` steps without
  /// overflow, and shrinks by `backoff_factor` after a step with one.
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
};

/// Multiplies the loss by a scale, divides the gradients by it before the step,
/// and leaves out steps whose gradients are not finite. An `Accelerator` with
/// fp16 has one; by hand it reads as PyTorch's:
///
///     scaler.scale(loss).backward();
///     scaler.step(optimizer);
///     scaler.update();
///
/// Used by one thread. The scale lives on the device of the loss; only
/// `found_inf`, `step`, `current_scale` and `state_dict` wait for the device.
class ACCELERATE_API GradScaler : public Stateful {
 public:
  /// Makes each number of a tensor of flags (0 or 1) the greatest of all ranks,
  /// so that all leave out the same steps.
  using Agreement = std::function<void(at::Tensor&)>;

  /// Throws `UsageError` where a factor makes no sense.
  explicit GradScaler(GradScalerOptions options = {}, Agreement agree = {});

  at::Tensor scale(const at::Tensor& loss);

  /// Divides the gradients of `parameters` by the scale and looks for infinite
  /// ones. `owner` names their optimizer: a second call for it before `update`
  /// does nothing. Nothing is noted of an owner that has no gradients on any
  /// rank. Throws `UsageError` on fp16 gradients, whose range cannot hold what
  /// was divided.
  void unscale(const void* owner, const std::vector<at::Tensor>& parameters);
  void unscale_(torch::optim::Optimizer& optimizer);
  /// The same for gradients that are no parameter's `grad()`.
  void unscale_gradients(
      const void* owner,
      const std::vector<at::Tensor>& gradients);
  /// Whether a gradient of `owner` was not finite, on any rank.
  bool found_inf(const void* owner) const;
  /// The same as a tensor of one float, 0 or 1, that nobody has waited for;
  /// undefined where nothing of `owner` was unscaled.
  at::Tensor overflow_of(const void* owner) const;

  /// Whether gradients of `owner` were unscaled since the last `update`.
  bool is_unscaled(const void* owner) const;
  /// As if they had not been: `update` does not count them, and the next
  /// `unscale` looks again.
  void forget(const void* owner);
  /// Multiplies gradients that were unscaled by the scale, for a backward that
  /// adds scaled ones to them.
  void scale_again(const std::vector<at::Tensor>& gradients) const;

  /// Unscales where that was not done, and steps where all gradients are
  /// finite. Returns whether it did.
  bool step(torch::optim::Optimizer& optimizer);
  /// Grows or shrinks the scale; call it when all optimizers have stepped.
  /// Nothing where none has been unscaled since the last call.
  void update();

  double current_scale() const;
  /// With what `update` would do now. The names are PyTorch's.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void put_on(c10::Device device);
  void update(at::Tensor& scale, at::Tensor& growth_tracker) const;

  GradScalerOptions options_;
  Agreement agree_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  /// By optimizer whose gradients were unscaled: 1 where one was not finite.
  std::map<const void*, at::Tensor> unscaled_;
};

} // namespace accelerate
