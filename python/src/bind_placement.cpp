// SPDX-License-Identifier: Apache-2.0
#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/placement/device_map.h"
#include "python/src/binders.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

/// Wraps the vector in a class, because pybind11 converts vectors to lists.
struct BoundTree {
  ModuleTree modules = {};
};

/// Name, identity, number of elements, bytes per element, whether it is cast.
using TensorRow = std::tuple<std::string, std::int64_t, double, double, bool>;
/// Class, parameters, buffers, children.
using ModuleRow = std::tuple<
    std::string,
    std::vector<TensorRow>,
    std::vector<TensorRow>,
    std::vector<std::pair<std::string, std::size_t>>>;
using Part = std::pair<std::string, std::size_t>;
using Sizes = std::vector<std::pair<std::string, double>>;
using Special = std::map<std::string, double, std::less<>>;

std::vector<TreeTensor> tensors_of(std::vector<TensorRow> rows) {
  std::vector<TreeTensor> tensors;
  for (auto& [name, identity, num_elements, bytes, is_cast] : rows) {
    tensors.push_back(
        {std::move(name), identity, num_elements, bytes, is_cast});
  }
  return tensors;
}

BoundTree make_tree(std::vector<ModuleRow> rows) {
  ModuleTree tree;
  for (auto& [class_name, parameters, buffers, children] : rows) {
    tree.push_back(
        {.class_name = std::move(class_name),
         .parameters = tensors_of(std::move(parameters)),
         .buffers = tensors_of(std::move(buffers)),
         .children = std::move(children)});
  }
  check_tree(tree);
  return {std::move(tree)};
}

/// Index 0 marks a tensor, because it is the index of the model itself.
std::vector<PlacedPart> parts_in(
    const ModuleTree& tree,
    const std::vector<Part>& rows) {
  std::vector<PlacedPart> parts;
  for (const auto& [name, module] : rows) {
    if (module >= tree.size()) {
      throw UsageError(str_cat(
          "[device_map] '",
          name,
          "' refers to module ",
          module,
          ", which does not exist"));
    }
    parts.push_back({name, module == 0 ? PlacedPart::kTensor : module});
  }
  return parts;
}

} // namespace

void bind_placement(py::module_& module) {
  py::class_<BoundTree>(module, "ModuleTree")
      .def(py::init(&make_tree), py::arg("modules"))
      .def(
          "sizes",
          [](const BoundTree& bound,
             std::optional<double> bytes_per_element,
             const Special& special,
             bool buffers_only) {
            return module_sizes(
                       bound.modules,
                       0,
                       {bytes_per_element, special},
                       buffers_only ? CountedTensors::kBuffers
                                    : CountedTensors::kAll)
                .entries();
          },
          py::arg("bytes_per_element"),
          py::arg("special"),
          py::arg("buffers_only"))
      .def(
          "largest_layer",
          [](const BoundTree& bound,
             const std::vector<Part>& parts,
             const Sizes& sizes,
             const ClassNames& unsplit_classes) {
            const auto largest = find_largest_layer(
                bound.modules,
                parts_in(bound.modules, parts),
                ModuleSizes(sizes),
                unsplit_classes);
            return std::pair(largest.num_bytes, largest.names);
          },
          py::arg("parts"),
          py::arg("sizes"),
          py::arg("unsplit_classes"))
      .def(
          "find_fitting",
          [](const BoundTree& bound,
             const std::vector<Part>& parts,
             const Sizes& sizes,
             double limit,
             const ClassNames& unsplit_classes,
             const TiedNames& tied)
              -> std::optional<
                  std::pair<std::string, std::vector<std::string>>> {
            const auto found = find_fitting_part(
                bound.modules,
                parts_in(bound.modules, parts),
                ModuleSizes(sizes),
                limit,
                unsplit_classes,
                tied);
            if (!found.is_found) {
              return std::nullopt;
            }
            std::vector<std::string> rest;
            for (const auto& part : found.rest) {
              rest.push_back(part.name);
            }
            return std::pair(found.part.name, std::move(rest));
          },
          py::arg("parts"),
          py::arg("sizes"),
          py::arg("limit"),
          py::arg("unsplit_classes"),
          py::arg("tied"))
      .def(
          "balance_memory",
          [](const BoundTree& bound,
             const std::vector<double>& accelerators,
             const ClassNames& unsplit_classes,
             std::optional<double> bytes_per_element,
             const Special& special,
             bool low_first) {
            return balance_memory(
                bound.modules,
                accelerators,
                unsplit_classes,
                {bytes_per_element, special},
                low_first);
          },
          py::arg("accelerators"),
          py::arg("unsplit_classes"),
          py::arg("bytes_per_element"),
          py::arg("special"),
          py::arg("low_first"))
      .def(
          "plan",
          [](const BoundTree& bound,
             const TiedNames& tied,
             const std::vector<std::tuple<std::string, double, bool, bool>>&
                 devices,
             const ClassNames& unsplit_classes,
             std::optional<double> bytes_per_element,
             const Special& special,
             bool simplify,
             bool offload_buffers,
             bool use_fallback) {
            std::vector<DeviceMemory> memory;
            for (const auto& [name, bytes, runs_offloaded, is_accelerator] :
                 devices) {
              memory.push_back({name, bytes, runs_offloaded, is_accelerator});
            }
            auto map = plan_device_map(
                bound.modules,
                tied,
                memory,
                {.unsplit_classes = unsplit_classes,
                 .dtypes = {bytes_per_element, special},
                 .simplify = simplify,
                 .offload_buffers = offload_buffers,
                 .use_fallback = use_fallback});
            return std::tuple(
                std::move(map.devices),
                map.unplaced_buffer_bytes,
                std::move(map.decisions));
          },
          py::arg("tied"),
          py::arg("devices"),
          py::arg("unsplit_classes"),
          py::arg("bytes_per_element"),
          py::arg("special"),
          py::arg("simplify"),
          py::arg("offload_buffers"),
          py::arg("use_fallback"));
  module.def(
      "size_with_ties",
      [](const std::vector<std::string>& tied,
         double bytes,
         const Sizes& sizes,
         const std::vector<std::string>& names) {
        std::vector<PlacedPart> parts;
        for (const auto& name : names) {
          parts.push_back({name});
        }
        const auto result =
            size_with_ties(tied, bytes, ModuleSizes(sizes), parts);
        return std::pair(result.num_bytes, result.parts);
      },
      py::arg("tied"),
      py::arg("bytes"),
      py::arg("sizes"),
      py::arg("names"));
  module.def("leaves_of", &leaves_of, py::arg("names"));
  module.def(
      "simplify_device_map",
      &simplify_device_map,
      py::arg("devices"),
      py::arg("module"));
}

} // namespace accelerate::python
