// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "accelerate/observe/tracking.h"
#include "core/tracking/json_lines.h"
#include "core/tracking/run_folder.h"
#include "python/src/binders.h"

namespace accelerate::python {

namespace py = pybind11;

void bind_tracking(py::module_& module) {
  using Json = nlohmann::ordered_json;
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.attr("METRICS_FILE") = kMetricsFile;
  // Values are passed as JSON text, which both languages can read.
  py::class_<MetricsFile>(module, "MetricsFile")
      .def(
          py::init([](const std::string& path) {
            return std::make_unique<MetricsFile>(path);
          }),
          py::arg("path"))
      .def(
          "start",
          [](MetricsFile& file,
             const std::string& project,
             int num_processes,
             int attempt) {
            file.start(
                {.project = project,
                 .num_processes = num_processes,
                 .attempt = attempt});
          },
          py::arg("project"),
          py::arg("num_processes"),
          py::arg("attempt"),
          release)
      .def(
          "store_configuration",
          [](MetricsFile& file, const std::string& values) {
            file.store_configuration(Json::parse(values));
          },
          py::arg("values"),
          release)
      .def(
          "log",
          [](MetricsFile& file, const std::string& values, int64_t step) {
            file.log(Json::parse(values), step);
          },
          py::arg("values"),
          py::arg("step"),
          release)
      .def(
          "mark",
          &MetricsFile::mark,
          py::arg("event"),
          py::arg("step"),
          release)
      .def("finish", &MetricsFile::finish, release);
}

} // namespace accelerate::python
