// SPDX-License-Identifier: Apache-2.0
#include "python/src/binders.h"
#include "python/src/python_optimizer.h"
#include "python/src/state_values.h"
#include "training/optim/optimizer_step.h"

namespace accelerate::python {

namespace py = pybind11;

namespace {

std::vector<std::string> only_names(const NamedParameters& parameters) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters) {
    names.push_back(name);
  }
  return names;
}

} // namespace

void bind_optimizer(py::module_& module) {
  // In these calls, the host may wait for the device and for other hosts.
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<OptimizerStep, std::shared_ptr<OptimizerStep>>(
      module, "OptimizerStep")
      .def(
          "step", [](OptimizerStep& step) { step.step(); }, release)
      .def(
          "zero_grad",
          [](OptimizerStep& step, bool set_to_none) {
            step.zero_grad(set_to_none ? Zeroing::kDrop : Zeroing::kFill);
          },
          py::arg("set_to_none"),
          release)
      .def("unscale", &OptimizerStep::unscale, release)
      .def_property_readonly("has_scaler", &OptimizerStep::has_scaler)
      .def_property_readonly(
          "was_skipped",
          py::cpp_function(&OptimizerStep::was_skipped, release));
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

void PythonOptimizer::replace(const std::vector<Replacement>& replacements) {
  const py::gil_scoped_acquire gil;
  py::list pairs;
  for (const auto& [name, from, to] : replacements) {
    pairs.append(py::make_tuple(name, from, to));
  }
  adapter_.attr("replace")(pairs);
}

std::string PythonOptimizer::why_no_slices() const {
  const py::gil_scoped_acquire gil;
  return adapter_.attr("why_no_slices")().cast<std::string>();
}

bool PythonOptimizer::takes_scalars() const {
  const py::gil_scoped_acquire gil;
  return adapter_.attr("takes_scalars")().cast<bool>();
}

std::string PythonOptimizer::prepare_capture() {
  const py::gil_scoped_acquire gil;
  return adapter_.attr("prepare_capture")().cast<std::string>();
}

size_t PythonOptimizer::num_groups() {
  const py::gil_scoped_acquire gil;
  return adapter_.attr("num_groups")().cast<size_t>();
}

double PythonOptimizer::sum_of_learning_rates() {
  const py::gil_scoped_acquire gil;
  return adapter_.attr("sum_of_learning_rates")().cast<double>();
}

std::vector<double> PythonOptimizer::current_rates() {
  const py::gil_scoped_acquire gil;
  return adapter_.attr("current_rates")().cast<std::vector<double>>();
}

void PythonOptimizer::set_current_rates(const std::vector<double>& rates) {
  const py::gil_scoped_acquire gil;
  adapter_.attr("set_current_rates")(rates);
}

bool PythonOptimizer::has_all_state() {
  const py::gil_scoped_acquire gil;
  return adapter_.attr("has_all_state")().cast<bool>();
}

void PythonOptimizer::step(const StepScalars& scalars) {
  const py::gil_scoped_acquire gil;
  adapter_.attr("step")(
      scalars.found_inf.defined() ? py::cast(scalars.found_inf)
                                  : py::object(py::none()));
}

void PythonOptimizer::zero_grad(Zeroing how) {
  const py::gil_scoped_acquire gil;
  adapter_.attr("zero_grad")(how == Zeroing::kDrop);
}

StateDict PythonOptimizer::state(const NamedParameters& names) {
  const py::gil_scoped_acquire gil;
  return to_state_dict(adapter_.attr("state")(only_names(names)));
}

void PythonOptimizer::check_state(
    const NamedParameters& names,
    const StateDict& state) {
  const py::gil_scoped_acquire gil;
  adapter_.attr("check_state")(only_names(names), from_state_dict(state));
}

void PythonOptimizer::load_state(
    const NamedParameters& names,
    const StateDict& state) {
  const py::gil_scoped_acquire gil;
  adapter_.attr("load_state")(only_names(names), from_state_dict(state));
}

} // namespace accelerate::python
