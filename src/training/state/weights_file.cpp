// SPDX-License-Identifier: Apache-2.0
#include "training/state/weights_file.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/state/file_tensors.h"
#include "training/state/page_allocator.h"

namespace accelerate {
namespace {

std::size_t num_bytes(
    const std::vector<std::int64_t>& shape,
    c10::ScalarType dtype) {
  std::size_t size = c10::elementSize(dtype);
  for (const auto dimension : shape) {
    if (dimension < 0 ||
        __builtin_mul_overflow(
            size, static_cast<std::size_t>(dimension), &size)) {
      throw DataError(str_cat(
          "[offload] ",
          at::IntArrayRef(shape),
          " is not the shape of a tensor. Offload the model again"));
    }
  }
  return size;
}

// Each call of a model allocates and frees its weights.
at::Tensor new_tensor(
    const std::vector<std::int64_t>& shape,
    c10::ScalarType dtype) {
  const std::size_t size = num_bytes(shape, dtype);
  if (size < kSmallestPages) {
    return at::empty(shape, dtype);
  }
  return at::empty({0}, dtype)
      .set_(
          c10::Storage(
              c10::Storage::use_byte_size_t(),
              size,
              page_allocator().allocate(size),
              &page_allocator(),
              /*resizable=*/false),
          0,
          shape);
}

void fill(
    const FileReader& reader,
    std::uint64_t position,
    const at::Tensor& tensor) {
  reader.read(
      position,
      {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
}

} // namespace

WeightsFile::WeightsFile(const std::filesystem::path& path)
    : reader_(path, "[safetensors]") {
  // The mapping is only used to read the header.
  const safetensors::File file(path);
  metadata_ = file.metadata();
  for (const auto& view : file.tensors()) {
    names_.push_back(view.name);
    entries_.emplace(
        view.name,
        Entry{
            .dtype =
                torch_dtype(view.dtype).value_or(c10::ScalarType::Undefined),
            .dtype_name = std::string(safetensors::dtype_name(view.dtype)),
            .shape = view.shape,
            .position = static_cast<std::uint64_t>(
                view.data.data() - file.bytes().data())});
  }
}

at::Tensor WeightsFile::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw safetensors::TensorNotFoundError(str_cat(
        "[safetensors] '",
        path().string(),
        "' has no tensor '",
        name,
        "'. Check the name"));
  }
  const auto& entry = found->second;
  if (entry.dtype == c10::ScalarType::Undefined) {
    throw DataError(str_cat(
        "[safetensors] '",
        name,
        "' in '",
        path().string(),
        "' has the dtype ",
        entry.dtype_name,
        ", which torch does not support. Write it with another dtype"));
  }
  auto tensor = new_tensor(entry.shape, entry.dtype);
  fill(reader_, entry.position, tensor);
  return tensor;
}

at::Tensor read_plain_tensor(
    const std::filesystem::path& path,
    std::vector<std::int64_t> shape,
    c10::ScalarType dtype) {
  const FileReader reader(path, "[offload]");
  const std::size_t size = num_bytes(shape, dtype);
  if (reader.size() != size) {
    throw DataError(str_cat(
        "[offload] '",
        path.string(),
        "' has ",
        reader.size(),
        " bytes, but a tensor of dtype ",
        dtype,
        " and shape ",
        at::IntArrayRef(shape),
        " has ",
        size,
        ". Offload the model again"));
  }
  auto tensor = new_tensor(shape, dtype);
  fill(reader, 0, tensor);
  return tensor;
}

} // namespace accelerate
