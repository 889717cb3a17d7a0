// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "python/src/binders.h"
#include "training/run/run_checkpoints.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

/// Returns the exception that corresponds to a Python class name, or null if
/// the name is empty.
std::exception_ptr exception_of(
    const std::string& kind,
    const std::string& text) {
  return kind.empty()            ? nullptr
         : kind == "UsageError"  ? std::make_exception_ptr(UsageError(text))
         : kind == "ConfigError" ? std::make_exception_ptr(ConfigError(text))
         : kind == "DataError"   ? std::make_exception_ptr(DataError(text))
                                 : std::make_exception_ptr(SystemError(text));
}

} // namespace

void bind_checkpoints(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<RunCheckpoints>(module, "RunCheckpoints")
      .def(
          "save_state",
          [](RunCheckpoints& checkpoints,
             const std::string& folder,
             const std::optional<py::function>& write_extra,
             bool asynchronous,
             std::optional<std::int64_t> total_limit,
             bool is_of_all) {
            RunCheckpoints::SaveWith with;
            with.is_of_all = is_of_all;
            with.asynchronous = asynchronous;
            with.total_limit = total_limit;
            if (write_extra) {
              with.extra = [&](const std::filesystem::path& stage) {
                const py::gil_scoped_acquire gil;
                auto [left_out, files] = (*write_extra)(stage.string())
                                             .cast<std::pair<
                                                 std::set<std::string>,
                                                 std::set<std::string>>>();
                return RunCheckpoints::SaveWith::Extra{
                    std::move(left_out), std::move(files)};
              };
            }
            const py::gil_scoped_release no_gil;
            checkpoints.save_state(folder, with);
          },
          py::arg("folder"),
          py::arg("write_extra") = py::none(),
          py::arg("asynchronous") = false,
          py::arg("total_limit") = py::none(),
          py::arg("is_of_all") = false)
      .def("wait_for_save", &RunCheckpoints::wait_for_save, release)
      .def(
          "wait_for_saves_of_all",
          &RunCheckpoints::wait_for_saves_of_all,
          release)
      .def_property_readonly("job", &RunCheckpoints::job)
      .def(
          "latest_intact_on_all_ranks",
          [](const RunCheckpoints& checkpoints, const std::string& parent) {
            std::vector<std::string> said;
            const auto found = checkpoints.latest_intact_on_all_ranks(
                parent, [&](const std::string& what) { said.push_back(what); });
            return std::pair(
                found ? std::optional(found->string()) : std::nullopt, said);
          },
          py::arg("parent"),
          release)
      .def(
          "fail_load_together",
          [](const RunCheckpoints& checkpoints,
             const std::string& kind,
             const std::string& text) {
            checkpoints.fail_load_together(exception_of(kind, text));
          },
          py::arg("kind"),
          py::arg("text"),
          release)
      .def(
          "save_model",
          [](const RunCheckpoints& checkpoints,
             const ModelContext& model,
             const std::string& folder,
             std::uint64_t max_shard_bytes,
             const std::vector<std::string>& order) {
            checkpoints.save_model(
                model, folder, {.max_shard_bytes = max_shard_bytes}, order);
          },
          py::arg("model"),
          py::arg("folder"),
          py::arg("max_shard_bytes"),
          py::arg("order"),
          release)
      .def(
          "load_state",
          [](RunCheckpoints& checkpoints,
             const std::string& folder,
             const std::set<std::string>& without) {
            return checkpoints.load_state(folder, without);
          },
          py::arg("folder"),
          py::arg("without") = std::set<std::string>(),
          release);
}

} // namespace accelerate::python
