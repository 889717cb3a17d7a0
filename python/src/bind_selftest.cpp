// SPDX-License-Identifier: Apache-2.0
#include "python/src/binders.h"
#include "training/selftest/selftest.h"

namespace accelerate::python {

void bind_selftest(pybind11::module_& module) {
  module.def(
      "run_selftest",
      &run_selftest,
      pybind11::call_guard<pybind11::gil_scoped_release>());
}

} // namespace accelerate::python
