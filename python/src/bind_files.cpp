// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

#include "accelerate/error.h"
#include "accelerate/files/safetensors_index.h"
#include "core/base/str.h"
#include "python/src/binders.h"
#include "training/state/file_tensors.h"
#include "training/state/weights_file.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

/// The tensors, in the order of the Python dictionary.
FileTensors file_tensors(const py::dict& tensors) {
  FileTensors held("[safetensors]", "pass safe_serialization=False");
  for (const auto& [key, value] : tensors) {
    const auto name = key.cast<std::string>();
    if (!THPVariable_Check(value.ptr())) {
      throw UsageError(str_cat(
          "[safetensors] '",
          name,
          "' is a ",
          std::string(py::str(py::type::of(value).attr("__name__"))),
          ", expected a tensor"));
    }
    held.add(name, value.cast<at::Tensor>());
  }
  return held;
}

py::dict load_tensors(const std::string& path) {
  const safetensors::File file(path);
  py::dict tensors;
  for (const auto& view : file.tensors()) {
    tensors[py::str(view.name)] = tensor_in(file, view).clone();
  }
  return tensors;
}

/// The names in each file.
std::vector<std::vector<std::string>> split_into_shards(
    const py::dict& sizes,
    std::uint64_t max_shard_bytes) {
  std::vector<safetensors::TensorView> views;
  for (const auto& [name, size] : sizes) {
    // Only the sizes of the views are used.
    views.push_back(
        {name.cast<std::string>(),
         safetensors::Dtype::kU8,
         {size.cast<std::int64_t>()},
         {static_cast<const std::byte*>(nullptr), size.cast<std::size_t>()}});
  }
  const auto plan = safetensors::split_into_shards(views, max_shard_bytes);
  std::vector<std::vector<std::string>> names;
  for (const auto& shard : plan.shards) {
    auto& own = names.emplace_back();
    for (const auto& tensor : shard.tensors) {
      own.push_back(tensor.name);
    }
  }
  return names;
}

} // namespace

void bind_files(py::module_& module) {
  py::class_<WeightsFile, std::shared_ptr<WeightsFile>>(module, "WeightsFile")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def("names", &WeightsFile::names)
      .def("metadata", &WeightsFile::metadata)
      .def(
          "read",
          [](const WeightsFile& file, const std::string& name) {
            const py::gil_scoped_release no_gil;
            return file.read(name);
          },
          py::arg("name"));
  module.def(
      "read_plain_tensor",
      [](const std::string& path,
         std::vector<std::int64_t> shape,
         at::ScalarType dtype) {
        const py::gil_scoped_release no_gil;
        return read_plain_tensor(path, std::move(shape), dtype);
      },
      py::arg("path"),
      py::arg("shape"),
      py::arg("dtype"));
  module.def("parse_size", &safetensors::parse_size, py::arg("text"));
  module.def("load_tensors", &load_tensors, py::arg("path"));
  module.def("fits_into_files", &fits_into_files, py::arg("tensor"));
  module.def(
      "save_tensors",
      [](const std::string& path,
         const py::dict& tensors,
         const safetensors::Metadata& metadata) {
        const auto held = file_tensors(tensors);
        const py::gil_scoped_release no_gil;
        safetensors::write_file(path, held.views(), {.metadata = metadata});
      },
      py::arg("path"),
      py::arg("tensors"),
      py::arg("metadata"));
  module.def(
      "save_sharded",
      [](const std::string& folder,
         const py::dict& tensors,
         std::uint64_t max_shard_bytes,
         const safetensors::Metadata& metadata) {
        const auto held = file_tensors(tensors);
        const py::gil_scoped_release no_gil;
        return safetensors::save_sharded(
            folder,
            held.views(),
            {.max_shard_bytes = max_shard_bytes, .metadata = metadata});
      },
      py::arg("folder"),
      py::arg("tensors"),
      py::arg("max_shard_bytes"),
      py::arg("metadata"));
  module.def(
      "split_into_shards",
      &split_into_shards,
      py::arg("sizes"),
      py::arg("max_shard_bytes"));
}

} // namespace accelerate::python
