// SPDX-License-Identifier: Apache-2.0
#include "accelerate/safetensors.h"
#include "core/base/atomic_file.h"
#include "core/base/str.h"
#include "core/safetensors/header.h"
#include "core/safetensors/layout.h"

namespace accelerate::safetensors {
namespace {

FileLayout lay_out_views(
    std::span<const TensorView> tensors,
    const Metadata& metadata,
    const std::string& target) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  auto layout = lay_out(specs, metadata, target);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].data.size() != layout.extents[i].num_bytes) {
      throw SizeMismatchError(str_cat(
          where_tensor(target, tensors[i].name),
          ": ",
          tensors[i].data.size(),
          " bytes of data, but its shape and dtype ",
          dtype_name(tensors[i].dtype),
          " need ",
          layout.extents[i].num_bytes,
          "; pass contiguous data for the whole tensor"));
    }
  }
  return layout;
}

} // namespace

std::vector<std::byte> serialize(
    std::span<const TensorView> tensors,
    const Metadata& metadata) {
  const auto layout = lay_out_views(tensors, metadata, "memory");
  std::vector<std::byte> out;
  out.reserve(layout.total_bytes);
  const auto append = [&](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(layout.head)));
  for (const auto index : layout.order) {
    append(tensors[index].data);
  }
  return out;
}

void write_file(
    const std::filesystem::path& path,
    std::span<const TensorView> tensors,
    const WriteOptions& options) {
  const auto layout = lay_out_views(tensors, options.metadata, path.string());
  AtomicFile file(path);
  file.reserve(layout.total_bytes);
  const auto write = [&](std::span<const std::byte> piece) {
    file.write(piece);
    if (options.written) {
      options.written(piece);
    }
  };
  write(std::as_bytes(std::span(layout.head)));
  for (const auto index : layout.order) {
    write(tensors[index].data);
  }
  file.commit(options.sync);
}

} // namespace accelerate::safetensors
