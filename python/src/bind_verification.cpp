// SPDX-License-Identifier: Apache-2.0
#include "python/src/binders.h"
#include "training/verification/step_recorder.h"

namespace accelerate::python {

namespace py = pybind11;

void bind_verification(py::module_& module) {
  py::class_<StepRecorder, std::unique_ptr<StepRecorder, py::nodelete>>(
      module, "StepRecorder")
      .def_property_readonly("is_reference", &StepRecorder::is_reference)
      .def_property_readonly(
          "has_same_batches", &StepRecorder::has_same_batches)
      .def_property_readonly(
          "num_merged_ranks", &StepRecorder::num_merged_ranks)
      .def(
          "note_batch",
          &StepRecorder::note_batch,
          py::arg("leaves"),
          py::arg("num_samples"))
      .def("note_raw_batch", &StepRecorder::note_raw_batch)
      .def(
          "note_outputs",
          &StepRecorder::note_outputs,
          py::arg("module"),
          py::arg("outputs"))
      .def("note_order", &StepRecorder::note_order, py::arg("hash"))
      .def("note_problem", &StepRecorder::note_problem, py::arg("text"))
      .def(
          "note_obstacle",
          &StepRecorder::note_obstacle,
          py::arg("text"),
          py::arg("only_excuses") = true);
  module.def(
      "step_recorder", &StepRecorder::get, py::return_value_policy::reference);
}

} // namespace accelerate::python
