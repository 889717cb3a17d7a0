// SPDX-License-Identifier: Apache-2.0
// The pretend accelerator for Python: importing it makes the devices known.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "device/pretend_accelerator.h"

namespace py = pybind11;

PYBIND11_MODULE(pretend_accelerator, module) {
  using namespace accelerate::testing;
  register_pretend_accelerator();
  module.attr("NAME") = kPretendName;
  module.attr("BACKEND") = kPretendBackend;
  module.attr("NUM_DEVICES") = kNumPretendDevices;
  module.def(
      "make_backend",
      &make_pretend_backend,
      py::arg("store"),
      py::arg("rank"),
      py::arg("size"),
      py::arg("timeout"),
      py::call_guard<py::gil_scoped_release>());
  module.def("num_kernels", [] { return pretend_counts().kernels.load(); });
  module.def(
      "num_collectives", [] { return pretend_counts().collectives.load(); });
  module.def("num_bytes", [] { return pretend_counts().bytes.load(); });
  module.def("restart_peak", [] {
    pretend_counts().peak_bytes = pretend_counts().bytes.load();
  });
  module.def("peak_bytes", [] { return pretend_counts().peak_bytes.load(); });
  module.def("num_emptied_caches", [] {
    return pretend_counts().emptied_caches.load();
  });
}
