// SPDX-License-Identifier: Apache-2.0
// A moving average of a model's weights.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/prepared_model.h"
#include "accelerate/stateful.h"

namespace accelerate {

struct ACCELERATE_API EmaOptions {
  /// How much of the average stays in each update, 0 to 1.
  double decay = 0.999;
  /// Take a smaller decay at first, (1 + n) / (10 + n) in update n, so that the
  /// average does not begin with weights that have learned nothing.
  bool warms_up = false;
};

/// Keeps averaged copies of the parameters, in fp32 where they are smaller;
/// buffers stay the model's. All ranks compute the same: nobody talks.
///
///     accelerate::Ema ema(net, {.decay = 0.99});
///     for (auto& batch : loader) {
///       accelerator.backward(torch::mse_loss(net(batch.x), batch.y));
///       opt.step();
///       opt.zero_grad();
///       if (accelerator.sync_gradients()) {
///         ema.update();
///       }
///     }
///     {
///       const auto averaged = ema.evaluate(); // The model has the averages
///       net.eval();
///     } // and its own weights again.
///
/// Its state joins checkpoints by `accelerator.state().add("ema", ...)`; they
/// are saved outside of the guard, which holds the model's own weights. Not for
/// engines of which each rank holds slices of the weights.
class ACCELERATE_API Ema : public Stateful {
 public:
  /// Begins with the weights as they are. Throws `UsageError` on a decay
  /// outside of 0 to 1 and on an empty pointer.
  explicit Ema(
      std::shared_ptr<torch::nn::Module> module,
      EmaOptions options = {});
  template <class Module>
  explicit Ema(const PreparedModel<Module>& model, EmaOptions options = {})
      : Ema(std::shared_ptr<torch::nn::Module>(model.module()), options) {}

  /// Call it where the optimizer has stepped. Throws `UsageError` while the
  /// model has the averages.
  void update();

  class ACCELERATE_API Guard {
   public:
    explicit Guard(Ema& ema);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Ema& ema_;
    std::vector<at::Tensor> own_;
  };
  /// While the guard lives, the module computes with the averages. Throws
  /// `UsageError` where it does already.
  [[nodiscard]] Guard evaluate() { return Guard(*this); }

  /// Throws `UsageError` while the model has the averages.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  EmaOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> averages_;
  int64_t num_updates_ = 0;
  bool is_swapped_ = false;
};

} // namespace accelerate
