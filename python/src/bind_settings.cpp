// SPDX-License-Identifier: Apache-2.0
#include "core/base/variables.h"
#include "core/config/config_file.h"
#include "core/config/launch_config.h"
#include "core/config/run_settings.h"
#include "python/src/binders.h"

namespace accelerate::python {

namespace py = pybind11;

void bind_settings(py::module_& module) {
  module.def("precision_names", [] {
    std::vector<std::string_view> names;
    for (const PrecisionName& row : precision_names()) {
      names.push_back(row.name);
    }
    return names;
  });
  module.def(
      "wants_cpu",
      [](std::optional<bool> code) {
        return RunSettings(system_env).cpu(code);
      },
      py::arg("code") = py::none());
  module.def("debug_is_on", [] { return RunSettings(system_env).debug({}); });
  module.def("gradient_accumulation_steps", [] {
    return RunSettings(system_env).gradient_accumulation_steps({});
  });
  // Documents are passed as JSON text, which both languages can read.
  module.def(
      "read_config",
      [](const std::string& path) {
        return read_config_file(path).document.dump();
      },
      py::arg("path"));
  module.def(
      "write_config",
      [](const std::string& path, const std::string& document) {
        write_config_file(path, nlohmann::json::parse(document));
      },
      py::arg("path"),
      py::arg("document"));
  module.attr("DEFAULT_MAIN_PROCESS_PORT") = kDefaultMainProcessPort;
  py::module_ names = module.def_submodule("variables");
  names.attr("FAST") = variables::kFast;
  names.attr("MIXED_PRECISION") = variables::kMixedPrecision;
  names.attr("GRADIENT_ACCUMULATION_STEPS") =
      variables::kGradientAccumulationSteps;
}

} // namespace accelerate::python
