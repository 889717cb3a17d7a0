// SPDX-License-Identifier: Apache-2.0
// The tests' second strategy for Python programs, and how many bytes the
// tensors of such a program take.
#include <torch/csrc/utils/pybind.h>

#include "parallel/host_bytes.h"
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
  // Of the thread that calls.
  using accelerate::testing::HostBytes;
  py::class_<HostBytes>(module, "HostBytes")
      .def(py::init<>())
      .def(
          "most_during",
          [](const HostBytes&, const py::function& work) {
            const auto& count = HostBytes::restart();
            const auto before = count.now.load();
            work();
            return count.peak - before;
          },
          py::arg("work"));
}
