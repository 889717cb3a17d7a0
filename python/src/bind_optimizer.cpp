// SPDX-License-Identifier: Apache-2.0
#include "optim/optimizer_step.h"
#include "python/src/binders.h"
#include "python/src/python_optimizer.h"

namespace accelerate::python {

namespace py = pybind11;

void bind_optimizer(py::module_& module) {
  py::class_<OptimizerStep, std::shared_ptr<OptimizerStep>>(
      module, "OptimizerStep")
      .def("step", &OptimizerStep::step)
      .def("zero_grad", &OptimizerStep::zero_grad)
      .def("unscale", &OptimizerStep::unscale)
      .def_property_readonly("was_skipped", &OptimizerStep::was_skipped);
}

PythonOptimizer::PythonOptimizer(py::object adapter)
    : adapter_(std::move(adapter)) {}

PythonOptimizer::~PythonOptimizer() {
  const py::gil_scoped_acquire gil;
  adapter_.release().dec_ref();
}

std::vector<at::Tensor> PythonOptimizer::parameters() {
  const py::gil_scoped_acquire gil;
  return adapter_.attr("parameters")().cast<std::vector<at::Tensor>>();
}

void PythonOptimizer::step() {
  const py::gil_scoped_acquire gil;
  adapter_.attr("step")();
}

void PythonOptimizer::zero_grad() {
  const py::gil_scoped_acquire gil;
  adapter_.attr("zero_grad")();
}

} // namespace accelerate::python
