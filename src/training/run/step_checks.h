// SPDX-License-Identifier: Apache-2.0
// Finds mistakes in training loops that raise no error by themselves.
#pragma once

#include <functional>
#include <string>

#include "training/run/loss_watch.h"
#include "training/run/run_context.h"

namespace accelerate {

class StepChecks {
 public:
  using Complain = std::function<void(const std::string& what)>;

  explicit StepChecks(const RunContext& context) : context_(context) {}

  /// See `TrainingRun::on_raw_loss`.
  void set_complain(Complain complain) { complain_ = std::move(complain); }
  bool complains() const { return static_cast<bool>(complain_); }
  /// Warns. With `debug`, throws instead.
  void warn(const std::string& what) const;
  /// Checks that all ranks have the same weights. With `debug`, it runs once in
  /// many backward passes. Collective.
  void check_weights() const;
  /// Checks that the gradients of the latest backward pass were synchronised.
  void check_arrivals();
  void watch_loss(const at::Tensor& loss);
  void watch_for_optimizers();

 private:
  const RunContext& context_;
  Complain complain_;
  /// Whether a loss that depends on no prepared model was reported.
  bool is_said_to_reach_none_ = false;
  /// Whether an optimizer's parameter that belongs to no model was reported.
  bool is_unowned_said_ = false;
  LossWatch loss_watch_;
  /// The number of backward passes that synchronised gradients.
  int64_t num_synchronised_ = 0;
};

} // namespace accelerate
