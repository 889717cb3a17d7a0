// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/capture.h"
#include "python/src/binders.h"
#include "training/device/device_graph.h"
#include "training/device/reused_memory.h"
#include "training/run/training_run.h"

namespace accelerate::python {

namespace py = pybind11;
using detail::StepCapture;

namespace {

/// The results of a step that are not tensors. Any thread may release them.
std::shared_ptr<const void> keep(py::object object) {
  return std::shared_ptr<py::object>(
      new py::object(std::move(object)), [](py::object* kept) {
        const py::gil_scoped_acquire gil;
        delete kept;
      });
}

} // namespace

void bind_capture(py::module_& module) {
  py::class_<GraphMemory, std::shared_ptr<GraphMemory>>(module, "GraphMemory");
  py::class_<DeviceGraph>(module, "DeviceGraph")
      .def("replay", &DeviceGraph::replay);
  module.def("has_device_graphs", &has_device_graphs, py::arg("device"));
  module.def("make_graph_memory", &make_graph_memory, py::arg("device"));
  module.def("is_recording_graph", &is_recording_graph, py::arg("device"));
  module.def(
      "record_graph",
      [](c10::Device device,
         const std::shared_ptr<GraphMemory>& memory,
         const py::function& work) {
        return record_graph(device, memory, [&] { work(); });
      },
      py::arg("device"),
      py::arg("memory"),
      py::arg("work"));
  py::class_<ReusedMemory>(module, "ReusedMemory")
      .def(py::init<>())
      .def("add", &ReusedMemory::add, py::arg("tensor"))
      .def("hand_out", &ReusedMemory::hand_out, py::arg("indices"))
      .def("reclaim", &ReusedMemory::reclaim, py::arg("indices"))
      .def(
          "hand_out_gradients",
          &ReusedMemory::hand_out_gradients,
          py::arg("indices"),
          py::arg("parameters"))
      .def(
          "owns_gradients",
          [](const ReusedMemory& memory,
             const std::vector<size_t>& indices,
             const std::vector<at::Tensor>& parameters) -> std::optional<bool> {
            size_t num_present = 0;
            size_t num_own = 0;
            for (size_t i = 0; i < indices.size(); ++i) {
              const auto& gradient = parameters.at(i).grad();
              num_present += gradient.defined() ? 1 : 0;
              num_own += memory.owns(indices[i], gradient) ? 1 : 0;
            }
            return num_present == 0 ? std::nullopt
                                    : std::optional(num_own == indices.size());
          },
          py::arg("indices"),
          py::arg("parameters"));
  py::class_<StepCapture>(module, "StepCapture")
      .def(
          py::init([](TrainingRun& run, int num_warmup, size_t max_graphs) {
            // Python libraries wait for the device only if no graph is
            // recorded.
            return std::make_unique<StepCapture>(
                run,
                CaptureOptions{
                    .num_warmup = num_warmup, .max_graphs = max_graphs},
                /*looks_first=*/false);
          }),
          py::arg("run"),
          py::arg("num_warmup"),
          py::arg("max_graphs"),
          py::keep_alive<1, 2>())
      .def(
          "call",
          [](StepCapture& capture,
             const std::vector<at::Tensor>& inputs,
             const std::string& structure,
             const py::function& function) {
            const auto outcome = capture.call(
                inputs, structure, [&](const std::vector<at::Tensor>& tensors) {
                  const auto result = function(tensors).cast<py::tuple>();
                  return StepCapture::Outcome{
                      result[0].cast<std::vector<at::Tensor>>(),
                      keep(py::object(result[1]))};
                });
            return py::make_tuple(
                outcome.tensors,
                *static_cast<const py::object*>(outcome.value.get()));
          },
          py::arg("inputs"),
          py::arg("structure"),
          py::arg("function"))
      .def_property_readonly("num_graphs", &StepCapture::num_graphs)
      .def_property_readonly("num_replays", &StepCapture::num_replays)
      .def_property_readonly("refusal", &StepCapture::refusal);
}

} // namespace accelerate::python
