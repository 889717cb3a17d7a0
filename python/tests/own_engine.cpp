// SPDX-License-Identifier: Apache-2.0
// The tests' second strategy for Python programs.
#include <torch/csrc/utils/pybind.h>

#include "parallel/optimizer_sharder.h"

PYBIND11_MODULE(own_engine, module) {
  namespace py = pybind11;
  using accelerate::OptimizerSharder;
  py::module_::import("accelerate._C");
  static OptimizerSharder* latest = nullptr;
  module.def("optimizer_sharder", [] {
    return accelerate::optimizer_sharder(&latest);
  });
  module.def("calls", [] { return latest->calls; });
}
