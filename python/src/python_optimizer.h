// SPDX-License-Identifier: Apache-2.0
// Adapts a Python optimizer to the training step.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "training/optim/optimizer_step.h"

namespace accelerate::python {

/// Calls the methods below on an object of `accelerate/optimizer.py`.
class PythonOptimizer final : public OptimizerAdapter {
 public:
  explicit PythonOptimizer(pybind11::object adapter);
  ~PythonOptimizer() override;
  PythonOptimizer(const PythonOptimizer&) = delete;
  PythonOptimizer& operator=(const PythonOptimizer&) = delete;

  std::vector<at::Tensor> parameters() override;
  size_t num_groups() override;
  void replace(const std::vector<Replacement>& replacements) override;
  std::string why_no_slices() const override;
  bool takes_scalars() const override;
  std::string prepare_capture() override;
  double sum_of_learning_rates() override;
  std::vector<double> current_rates() override;
  void set_current_rates(const std::vector<double>& rates) override;
  bool has_all_state() override;
  void step(const StepScalars& scalars) override;
  void zero_grad(Zeroing how) override;
  StateDict state(const NamedParameters& names) override;
  void check_state(const NamedParameters& names, const StateDict& state)
      override;
  void load_state(const NamedParameters& names, const StateDict& state)
      override;

 private:
  pybind11::object adapter_;
};

} // namespace accelerate::python
