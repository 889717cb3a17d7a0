// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/streamed_file.h"

#include "core/base/str.h"
#include "core/safetensors/header.h"

namespace accelerate::safetensors {

StreamedFile::StreamedFile(
    const std::filesystem::path& path,
    std::span<const TensorSpec> tensors,
    const Metadata& metadata)
    : path_(path), file_(path) {
  const auto layout = lay_out(tensors, metadata, path_.string());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& extent = layout.extents[i];
    pending_.emplace(tensors[i].name, Pending{extent, extent.num_bytes});
  }
  file_.reserve(layout.total_bytes);
  file_.write(std::string_view(layout.head));
}

void StreamedFile::write(
    const std::string& name,
    std::uint64_t offset,
    std::span<const std::byte> bytes) {
  const auto found = pending_.find(name);
  if (found == pending_.end()) {
    throw TensorNotFoundError(str_cat(
        where_tensor(path_.string(), name),
        " was not declared. Declare every tensor when the file is created"));
  }
  auto& [extent, num_missing] = found->second;
  if (offset > extent.num_bytes || bytes.size() > extent.num_bytes - offset ||
      bytes.size() > num_missing) {
    throw SizeMismatchError(str_cat(
        where_tensor(path_.string(), name),
        ": ",
        bytes.size(),
        " bytes at offset ",
        offset,
        " do not fit into a tensor of ",
        extent.num_bytes,
        " bytes, of which ",
        num_missing,
        " have not been written yet. Write each byte once"));
  }
  if (!bytes.empty()) {
    file_.seek(extent.begin + offset);
    file_.write(bytes);
    num_missing -= bytes.size();
  }
}

void StreamedFile::commit(bool sync) {
  for (const auto& [name, pending] : pending_) {
    if (pending.num_missing != 0) {
      throw SizeMismatchError(str_cat(
          where_tensor(path_.string(), name),
          " lacks ",
          pending.num_missing,
          " of ",
          pending.extent.num_bytes,
          " bytes. Write the whole tensor"));
    }
  }
  file_.commit(sync);
}

} // namespace accelerate::safetensors
