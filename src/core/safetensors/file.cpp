// SPDX-License-Identifier: Apache-2.0
#include <unordered_map>

#include "accelerate/safetensors.h"
#include "core/base/mapped_file.h"
#include "core/base/str.h"
#include "core/safetensors/shown.h"

namespace accelerate::safetensors {

struct File::Impl {
  explicit Impl(const std::filesystem::path& file)
      : path(file),
        mapping(file, "safetensors", "safetensors file"),
        contents(parse(mapping.bytes(), file.string())) {
    indices.reserve(contents.tensors.size());
    for (std::size_t i = 0; i < contents.tensors.size(); ++i) {
      indices.emplace(contents.tensors[i].name, i);
    }
  }

  std::filesystem::path path;
  MappedFile mapping;
  Contents contents;
  std::unordered_map<std::string_view, std::size_t> indices;
};

File::File(const std::filesystem::path& path)
    : impl_(std::make_shared<const Impl>(path)) {}

const std::filesystem::path& File::path() const {
  return impl_->path;
}

std::span<const std::byte> File::bytes() const {
  return impl_->mapping.bytes();
}

const Metadata& File::metadata() const {
  return impl_->contents.metadata;
}

const std::vector<TensorView>& File::tensors() const {
  return impl_->contents.tensors;
}

bool File::contains(const std::string& name) const {
  return impl_->indices.contains(name);
}

const TensorView& File::tensor(const std::string& name) const {
  const auto found = impl_->indices.find(name);
  if (found != impl_->indices.end()) {
    return tensors()[found->second];
  }
  std::string some;
  for (const auto& tensor :
       std::span(tensors()).first(std::min<std::size_t>(tensors().size(), 3))) {
    some += (some.empty() ? "" : ", ") + shown(tensor.name);
  }
  throw TensorNotFoundError(str_cat(
      "[safetensors] '",
      path().string(),
      "' has no tensor ",
      shown(name),
      " (it has ",
      tensors().size(),
      " others",
      some.empty() ? "" : ": " + some + ", ...",
      "); check the name"));
}

} // namespace accelerate::safetensors
