// SPDX-License-Identifier: Apache-2.0
#include "accelerate/files/safetensors_index.h"
#include "core/base/str.h"
#include "core/safetensors/folder.h"
#include "core/safetensors/shown.h"

namespace accelerate::safetensors {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexEnding = ".safetensors.index.json";
constexpr std::string_view kFileEnding = ".safetensors";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

fs::path weights_in(const fs::path& folder) {
  for (const char* name : {kWeightsName, kIndexName}) {
    if (is_there(folder / name)) {
      return folder / name;
    }
  }
  const auto names = names_in(folder);
  for (const auto ending : {kIndexEnding, kFileEnding}) {
    std::vector<std::string> found;
    for (const auto& name : names) {
      if (name.ends_with(ending) && !name.starts_with('.')) {
        found.push_back(name);
      }
    }
    if (found.size() == 1) {
      return folder / found[0];
    }
  }
  throw SystemError(str_cat(
      "[safetensors] the folder '",
      folder.string(),
      "' has neither ",
      kWeightsName,
      " nor ",
      kIndexName,
      "; pass a file, or a folder with one of them"));
}

} // namespace

Checkpoint::Checkpoint(const fs::path& path)
    : path_(is_folder(path) ? weights_in(path) : path) {
  if (path_.string().ends_with(".json")) {
    open_index(path_);
    return;
  }
  files_.emplace_back(path_);
  for (const auto& tensor : files_[0].tensors()) {
    file_of_.emplace(tensor.name, 0);
  }
}

void Checkpoint::open_index(const fs::path& path) {
  const ShardIndex index = read_index(path);
  std::map<std::string, std::size_t> indices;
  for (const auto& [tensor, file] : index.weight_map) {
    indices.emplace(file, 0);
  }
  for (auto& [name, file_index] : indices) {
    const fs::path file = path.parent_path() / name;
    if (!is_there(file)) {
      throw InvalidIndexError(str_cat(
          "[safetensors] the index '",
          path.string(),
          "' names the file ",
          shown(name),
          ", which is missing from its folder; download or copy that file "
          "too"));
    }
    file_index = files_.size();
    files_.emplace_back(file);
  }
  for (const auto& [tensor, file] : index.weight_map) {
    const std::size_t file_index = indices.at(file);
    if (!files_[file_index].contains(tensor)) {
      throw InvalidIndexError(str_cat(
          "[safetensors] the index '",
          path.string(),
          "' assigns tensor ",
          shown(tensor),
          " to ",
          shown(file),
          ", which does not contain it; the index and the files come from "
          "different saves"));
    }
    file_of_.emplace(tensor, file_index);
  }
}

std::vector<TensorView> Checkpoint::tensors() const {
  std::vector<TensorView> all;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const auto& tensor : files_[i].tensors()) {
      const auto found = file_of_.find(tensor.name);
      if (found != file_of_.end() && found->second == i) {
        all.push_back(tensor);
      }
    }
  }
  return all;
}

bool Checkpoint::contains(const std::string& name) const {
  return file_of_.contains(name);
}

const TensorView& Checkpoint::tensor(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    throw TensorNotFoundError(str_cat(
        "[safetensors] '",
        path_.string(),
        "' has no tensor ",
        shown(name),
        " (it has ",
        file_of_.size(),
        " others); check the name"));
  }
  return files_[found->second].tensor(name);
}

void merge(const Checkpoint& source, const fs::path& target, bool sync) {
  Metadata metadata;
  for (const auto& file : source.files()) {
    metadata.insert(file.metadata().begin(), file.metadata().end());
  }
  write_file(target, source.tensors(), {.metadata = metadata, .sync = sync});
}

} // namespace accelerate::safetensors
