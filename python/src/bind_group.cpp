// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/c10d.h"
#include "accelerate/distributed/collectives.h"
#include "accelerate/error.h"
#include "python/src/binders.h"
#include "training/comm/agreement.h"
#include "training/comm/failure.h"
#include "training/comm/script_lock.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;
using Tensors = std::vector<at::Tensor>;

ReduceOp parse_reduction(const std::string& name) {
  if (name == "sum") {
    return ReduceOp::kSum;
  }
  if (name == "mean") {
    return ReduceOp::kMean;
  }
  if (name == "max") {
    return ReduceOp::kMax;
  }
  throw UsageError(
      "[reduce] Unknown reduction '" + name +
      "'. Expected one of: sum, mean, max");
}

} // namespace

void bind_group(py::module_& module) {
  set_script_lock(
      {.release = []() -> void* {
         // At the end of the interpreter, there is no thread state, and
         // PyGILState_Check returns 1.
         const bool holds = PyGILState_GetThisThreadState() != nullptr &&
                            PyGILState_Check() == 1;
         return holds ? PyEval_SaveThread() : nullptr;
       },
       .take =
           [](void* released) {
             PyEval_RestoreThread(static_cast<PyThreadState*>(released));
           }});
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<ProcessGroup>(module, "ProcessGroup")
      .def(py::init<>())
      .def(py::init(&from_c10d), py::arg("group"))
      .def_property_readonly("rank", &ProcessGroup::rank)
      .def_property_readonly("world_size", &ProcessGroup::world_size)
      .def_property_readonly("backend", &ProcessGroup::backend)
      .def_property_readonly("is_solo", &ProcessGroup::is_solo)
      .def(
          "barrier",
          [](const ProcessGroup& group) {
            agree_on_text(group, "wait_for_everyone", "");
          },
          release)
      .def("report_failure", &report_failure, py::arg("cause"), release)
      .def("check_collectives", &ProcessGroup::check_collectives)
      .def("shutdown", &ProcessGroup::shutdown, release)
      .def_property_readonly("is_shut_down", &ProcessGroup::is_shut_down)
      .def(
          "all_gather",
          [](const ProcessGroup& group,
             const Tensors& tensors,
             const std::string& structure) {
            return detail::all_gather(group, {tensors, structure});
          },
          py::arg("tensors"),
          py::arg("structure"),
          release)
      .def(
          "reduce",
          [](const ProcessGroup& group,
             const Tensors& tensors,
             const std::string& structure,
             const std::string& reduction) {
            return detail::reduce(
                group, {tensors, structure}, parse_reduction(reduction));
          },
          py::arg("tensors"),
          py::arg("structure"),
          py::arg("reduction"),
          release)
      .def(
          "broadcast",
          [](const ProcessGroup& group,
             const Tensors& tensors,
             const std::string& structure,
             int root) {
            detail::broadcast(group, {tensors, structure}, root);
          },
          py::arg("tensors"),
          py::arg("structure"),
          py::arg("root"),
          release)
      .def(
          "pad_across_processes",
          [](const ProcessGroup& group,
             const Tensors& tensors,
             const std::string& structure,
             int64_t dim,
             double pad_index,
             bool pad_first) {
            return detail::pad_across_processes(
                group, {tensors, structure}, dim, pad_index, pad_first);
          },
          py::arg("tensors"),
          py::arg("structure"),
          py::arg("dim"),
          py::arg("pad_index"),
          py::arg("pad_first"),
          release)
      .def(
          "broadcast_bytes",
          [](const ProcessGroup& group, const std::string& bytes, int root) {
            std::string all;
            {
              const py::gil_scoped_release no_gil;
              all = group.broadcast_bytes(bytes, root);
            }
            return py::bytes(all);
          },
          py::arg("data"),
          py::arg("root"));
}

} // namespace accelerate::python
