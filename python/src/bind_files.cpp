// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "accelerate/error.h"
#include "accelerate/safetensors_index.h"
#include "base/str.h"
#include "python/src/binders.h"
#include "state/tensor_dtype.h"

namespace accelerate::python {
namespace {

namespace py = pybind11;

/// Tensors by name in the order of a Python dictionary, as files hold them.
class FileTensors {
 public:
  explicit FileTensors(const py::dict& tensors) {
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
      add(name, value.cast<at::Tensor>());
    }
  }
  const std::vector<safetensors::TensorView>& views() const { return views_; }

 private:
  void add(const std::string& name, const at::Tensor& tensor) {
    const auto dtype = file_dtype(tensor.scalar_type());
    if (!dtype || tensor.layout() != at::kStrided) {
      throw UsageError(str_cat(
          "[safetensors] '",
          name,
          "' is of ",
          c10::toString(tensor.scalar_type()),
          tensor.layout() == at::kStrided ? "" : " and not dense",
          ", which safetensors files cannot hold; pass "
          "safe_serialization=False"));
    }
    held_.push_back(tensor.detach().cpu().contiguous());
    const auto& held = held_.back();
    views_.push_back(
        {name,
         *dtype,
         held.sizes().vec(),
         {static_cast<const std::byte*>(held.const_data_ptr()),
          held.nbytes()}});
  }

  std::vector<at::Tensor> held_;
  std::vector<safetensors::TensorView> views_;
};

py::dict load_tensors(const std::string& path) {
  const safetensors::File file(path);
  py::dict tensors;
  for (const auto& view : file.tensors()) {
    const auto dtype = torch_dtype(view.dtype);
    if (!dtype) {
      throw DataError(str_cat(
          "[safetensors] '",
          view.name,
          "' in ",
          path,
          " is of ",
          safetensors::dtype_name(view.dtype),
          ", which torch has no tensors of"));
    }
    auto tensor = at::empty(view.shape, *dtype);
    std::memcpy(tensor.mutable_data_ptr(), view.data.data(), view.data.size());
    tensors[py::str(view.name)] = tensor;
  }
  return tensors;
}

/// The names in each file.
std::vector<std::vector<std::string>> split_into_shards(
    const py::dict& sizes,
    std::uint64_t max_shard_bytes) {
  std::vector<safetensors::TensorView> views;
  for (const auto& [name, size] : sizes) {
    // Only sizes are looked at.
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
  module.def("parse_size", &safetensors::parse_size, py::arg("text"));
  module.def("load_tensors", &load_tensors, py::arg("path"));
  module.def(
      "fits_into_files",
      [](const at::Tensor& tensor) {
        return tensor.layout() == at::kStrided &&
               file_dtype(tensor.scalar_type()).has_value();
      },
      py::arg("tensor"));
  module.def(
      "save_tensors",
      [](const std::string& path,
         const py::dict& tensors,
         const safetensors::Metadata& metadata) {
        const FileTensors held(tensors);
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
        const FileTensors held(tensors);
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
