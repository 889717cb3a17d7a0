// SPDX-License-Identifier: Apache-2.0
#include "python/src/binders.h"
#include "training/state/step_state.h"

namespace accelerate::python {

namespace py = pybind11;

void bind_step_state(py::module_& module) {
  py::class_<BatchFacts>(module, "BatchFacts")
      .def_readonly("is_last", &BatchFacts::is_last)
      .def_readonly("num_samples", &BatchFacts::num_samples)
      .def_readonly("num_real", &BatchFacts::num_real);
  py::class_<StepState::Feed, std::shared_ptr<StepState::Feed>>(module, "Feed")
      .def(
          "hand_out",
          [](StepState::Feed& feed,
             bool is_last,
             int64_t num_samples,
             int64_t num_real) {
            feed.hand_out({is_last, num_samples, num_real});
          },
          py::arg("is_last"),
          py::arg("num_samples"),
          py::arg("num_real"))
      .def("leave", &StepState::Feed::leave);
  py::class_<StepState, std::shared_ptr<StepState>>(module, "StepState")
      .def(py::init<>())
      .def("open_feed", &StepState::open_feed, py::arg("full_size") = 0)
      .def("batch", &StepState::batch)
      .def_property_readonly("total_backwards", &StepState::total_backwards)
      .def_property(
          "sync_gradients",
          &StepState::sync_gradients,
          &StepState::set_sync_gradients);
}

} // namespace accelerate::python
