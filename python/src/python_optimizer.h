// SPDX-License-Identifier: Apache-2.0
// A Python optimizer as the training step sees it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "optim/optimizer_step.h"

namespace accelerate::python {

/// Calls an object with `parameters()`, `step()` and `zero_grad()`.
class PythonOptimizer final : public OptimizerAdapter {
 public:
  explicit PythonOptimizer(pybind11::object adapter);
  ~PythonOptimizer() override;
  PythonOptimizer(const PythonOptimizer&) = delete;
  PythonOptimizer& operator=(const PythonOptimizer&) = delete;

  std::vector<at::Tensor> parameters() override;
  void step() override;
  void zero_grad() override;

 private:
  pybind11::object adapter_;
};

} // namespace accelerate::python
