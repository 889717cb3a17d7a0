// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/process.h"
#include "accelerate/training/memory.h"
#include "core/hardware/network.h"
#include "python/src/binders.h"
#include "training/comm/backends/backends.h"
#include "training/comm/connect.h"
#include "training/device/accelerator_kinds.h"
#include "training/device/device.h"
#include "training/run/assemble.h"

namespace accelerate::python {

namespace py = pybind11;

void bind_process(py::module_& module) {
  py::class_<ProcessEnvironment>(module, "ProcessEnvironment")
      .def_property_readonly(
          "rank", [](const ProcessEnvironment& e) { return e.topology.rank; })
      .def_property_readonly(
          "world_size",
          [](const ProcessEnvironment& e) { return e.topology.world_size; })
      .def_property_readonly(
          "local_rank",
          [](const ProcessEnvironment& e) { return e.topology.local_rank; })
      .def_property_readonly(
          "local_world_size",
          [](const ProcessEnvironment& e) {
            return e.topology.local_world_size;
          })
      .def_property_readonly(
          "address",
          [](const ProcessEnvironment& e) { return e.rendezvous.address; })
      .def_property_readonly(
          "port", [](const ProcessEnvironment& e) { return e.rendezvous.port; })
      .def_property_readonly("source", &ProcessEnvironment::starter_name)
      .def(
          "choose_backend",
          [](const ProcessEnvironment& e,
             const std::optional<std::string>& wanted,
             bool cpu) {
            return backends_by_device(choose_backend(
                wanted.value_or(Backend::kAuto), e.topology, cpu));
          },
          py::arg("wanted"),
          py::arg("cpu"))
      .def(
          "interface",
          [](const ProcessEnvironment& e) {
            const auto& rendezvous = e.rendezvous;
            return rendezvous.interface.empty()
                       ? interface_towards(
                             resolve_host(rendezvous.address).front())
                       : rendezvous.interface;
          })
      .def(
          "connect_store",
          [](const ProcessEnvironment& e,
             const std::optional<std::chrono::milliseconds>& timeout) {
            ignore_broken_pipes();
            const ProcessGroupOptions defaults;
            auto store =
                connect_store(e, timeout.value_or(defaults.connect_timeout));
            store->setTimeout(timeout.value_or(defaults.timeout));
            return store;
          },
          py::arg("timeout") = std::nullopt,
          py::call_guard<py::gil_scoped_release>());

  module.def("detect_environment", [] { return detect_environment(); });
  module.def(
      "collective_timeout", [] { return ProcessGroupOptions().timeout; });
  // For processes in which user code created the group.
  module.def(
      "environment_of_group",
      [](int rank, int world_size, int local_rank, int local_world_size) {
        ProcessEnvironment environment;
        environment.topology = {
            .rank = rank,
            .world_size = world_size,
            .local_rank = local_rank,
            .local_world_size = local_world_size};
        return environment;
      },
      py::arg("rank"),
      py::arg("world_size"),
      py::arg("local_rank"),
      py::arg("local_world_size"));
  module.def("accelerator_kinds", [] {
    std::vector<std::string> names;
    for (const auto* kind : accelerator_kinds()) {
      names.push_back(kind->name());
    }
    return names;
  });
  module.def("default_device", &default_device);
  module.def("clear_device_cache", &clear_device_cache);
  module.def(
      "distributed_type",
      [](const ProcessGroup& group, c10::Device device) {
        return name_of(distributed_type_of(group, device), device);
      },
      py::arg("group"),
      py::arg("device"));
  module.def(
      "select_device", &select_device, py::arg("local_rank"), py::arg("cpu"));
}

} // namespace accelerate::python
