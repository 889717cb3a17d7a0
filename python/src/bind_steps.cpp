// SPDX-License-Identifier: Apache-2.0
#include "python/src/binders.h"
#include "training/run/batch_rows.h"
#include "training/run/step_report.h"

namespace accelerate::python {

namespace py = pybind11;

void bind_steps(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<StepReport>(module, "StepReport")
      .def("step_times", &StepReport::step_times)
      .def("say_step_times", &StepReport::say_step_times)
      .def(
          "keep_journal",
          [](StepReport& report, const std::string& folder) {
            report.keep_journal(folder);
          },
          py::arg("folder"))
      .def("end_journal", &StepReport::end_journal);
  py::class_<BatchRows>(module, "BatchRows")
      .def(
          "gather_real",
          [](const BatchRows& rows,
             const std::vector<at::Tensor>& tensors,
             const std::string& structure) {
            return rows.gather_real({tensors, structure});
          },
          py::arg("tensors"),
          py::arg("structure"),
          release)
      .def(
          "num_real",
          &BatchRows::num_real,
          py::arg("size"),
          py::arg("are_copies") = false)
      .def("mixed_repeats", &BatchRows::mixed_repeats, py::arg("size"))
      .def("real_rows", &BatchRows::real_rows, py::arg("values"), release);
}

} // namespace accelerate::python
