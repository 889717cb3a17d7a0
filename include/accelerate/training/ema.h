// SPDX-License-Identifier: Apache-2.0
// Exponential moving average of a model's weights.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/prepared_model.h"
#include "accelerate/state/stateful.h"

namespace accelerate {

struct ACCELERATE_API EmaOptions {
  /// The weight of the old average in each update, from 0 to 1.
  double decay = 0.999;
  /// Start with a smaller decay, (1 + n) / (10 + n) in update n, so that
  /// untrained weights do not dominate the average.
  bool warms_up = false;
};

/// Keeps averaged copies of the parameters, in fp32 or higher precision.
/// Buffers are not averaged. All ranks compute the same average without
/// communication.
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
///       const auto averaged = ema.evaluate(); // The model uses the averages
///       net.eval();
///     } // and now its own weights again.
///
/// To save its state in checkpoints: `accelerator.state().add("ema", ...)`.
/// Save only while no guard exists, because a guard replaces the weights of the
/// model. Engines that divide the weights among ranks are not supported.
class ACCELERATE_API Ema : public Stateful {
 public:
  /// Initialises the averages with the current weights. Throws `UsageError` if
  /// the decay is not in [0, 1] or the pointer is null.
  explicit Ema(
      std::shared_ptr<torch::nn::Module> module,
      EmaOptions options = {});
  template <class Module>
  explicit Ema(const PreparedModel<Module>& model, EmaOptions options = {})
      : Ema(std::shared_ptr<torch::nn::Module>(model.module()), options) {}

  /// Call it after the optimizer has stepped. Throws `UsageError` while the
  /// model uses the averages.
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
  /// During the lifetime of the guard, the module uses the averages. Throws
  /// `UsageError` if it already uses them.
  [[nodiscard]] Guard evaluate() { return Guard(*this); }

  /// Throws `UsageError` while the model uses the averages.
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
