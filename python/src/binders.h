// SPDX-License-Identifier: Apache-2.0
// One function for each header that the Python package uses.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace accelerate::python {

void bind_errors(pybind11::module_& module);
void bind_settings(pybind11::module_& module);
void bind_process(pybind11::module_& module);
void bind_group(pybind11::module_& module);
void bind_observe(pybind11::module_& module);
void bind_state(pybind11::module_& module);
void bind_step_state(pybind11::module_& module);
void bind_data(pybind11::module_& module);
void bind_model(pybind11::module_& module);
void bind_optimizer(pybind11::module_& module);
void bind_files(pybind11::module_& module);
void bind_placement(pybind11::module_& module);
void bind_capture(pybind11::module_& module);
void bind_checkpoints(pybind11::module_& module);
void bind_steps(pybind11::module_& module);
void bind_tracking(pybind11::module_& module);
void bind_run(pybind11::module_& module);
void bind_verification(pybind11::module_& module);
void bind_selftest(pybind11::module_& module);

} // namespace accelerate::python
