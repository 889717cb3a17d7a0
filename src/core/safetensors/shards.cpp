// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <set>

#include "accelerate/files/safetensors_index.h"
#include "core/base/atomic_file.h"
#include "core/base/plain_text.h"
#include "core/base/str.h"
#include "core/base/words.h"
#include "core/safetensors/folder.h"
#include "core/safetensors/header.h"
#include "core/safetensors/streamed_file.h"

namespace accelerate::safetensors {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

// Longer suffixes come first, because "GIB" also ends in "B".
constexpr Unit kUnits[] = {
    {"TIB", 1099511627776.0},
    {"GIB", 1073741824.0},
    {"MIB", 1048576.0},
    {"KIB", 1024.0},
    {"TB", 1e12},
    {"GB", 1e9},
    {"MB", 1e6},
    {"KB", 1e3},
    {"", 1.0},
};

std::string shard_name(std::size_t number, std::size_t count) {
  char name[64];
  std::snprintf(
      name, sizeof(name), "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

// "model-00001-of-00003.safetensors", with any digits.
bool is_shard_name(const std::string& name) {
  std::string pattern = name;
  std::replace_if(
      pattern.begin(),
      pattern.end(),
      [](unsigned char c) { return std::isdigit(c) != 0; },
      '0');
  return pattern == "model-00000-of-00000.safetensors";
}

std::string file_name(std::size_t index, std::size_t count) {
  return count == 1 ? kWeightsName : shard_name(index + 1, count);
}

/// Assigns tensors of these sizes to files. Returns the indices in each file.
std::vector<std::vector<std::size_t>> split_indices(
    const std::vector<std::uint64_t>& sizes,
    std::uint64_t max_shard_bytes) {
  std::vector<std::vector<std::size_t>> files;
  std::vector<std::size_t> current;
  std::uint64_t current_bytes = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > max_shard_bytes) {
      files.push_back({i});
      continue;
    }
    if (current_bytes + sizes[i] > max_shard_bytes) {
      files.push_back(std::move(current));
      current = {};
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += sizes[i];
  }
  if (!current.empty() || files.empty()) {
    files.push_back(std::move(current));
  }
  return files;
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw SystemError(str_cat(
        "[safetensors] cannot create the folder '",
        folder.string(),
        "': ",
        error.message(),
        "; pass a folder that you can write to"));
  }
}

void remove_old_weights(
    const std::filesystem::path& folder,
    const std::vector<std::string>& written) {
  const std::set<std::string> keep(written.begin(), written.end());
  for (const auto& name : names_in(folder)) {
    if (keep.contains(name) ||
        !(is_shard_name(name) || name == kWeightsName || name == kIndexName)) {
      continue;
    }
    std::error_code error;
    std::filesystem::remove(folder / name, error);
    if (error) {
      throw SystemError(str_cat(
          "[safetensors] cannot remove '",
          (folder / name).string(),
          "', left by an earlier save: ",
          error.message(),
          "; remove it, or it may be loaded instead of the new files"));
    }
  }
}

/// Call it after the files are written: writes the index and removes files of
/// an earlier save.
void finish_save(
    const std::filesystem::path& folder,
    const ShardIndex& index,
    bool sync,
    std::vector<std::string>& written) {
  if (written.size() > 1) {
    AtomicFile file(folder / kIndexName);
    file.write(format_index(index));
    file.commit(sync);
    written.push_back(kIndexName);
  }
  remove_old_weights(folder, written);
}

} // namespace

std::uint64_t parse_size(std::string_view text) {
  const std::string upper = upper_case(trimmed(text));
  for (const auto& unit : kUnits) {
    if (!upper.ends_with(unit.name)) {
      continue;
    }
    const std::string_view number = trimmed(
        std::string_view(upper).substr(0, upper.size() - unit.name.size()));
    double value = -1;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), value);
    const bool is_number =
        error == std::errc() && end == number.data() + number.size();
    if (is_number && value >= 0 && value * unit.bytes < 9.2e18) {
      return static_cast<std::uint64_t>(value * unit.bytes);
    }
    break;
  }
  throw ConfigError(str_cat(
      "[safetensors] the size '",
      text,
      "' is not a number with an optional unit; pass 10GB, 5GiB or 1000, for "
      "example"));
}

ShardPlan split_into_shards(
    std::span<const TensorView> tensors,
    std::uint64_t max_shard_bytes) {
  std::vector<std::uint64_t> sizes;
  for (const auto& tensor : tensors) {
    sizes.push_back(tensor.data.size());
  }
  ShardPlan plan;
  const auto files = split_indices(sizes, max_shard_bytes);
  plan.index.total_size =
      std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  for (std::size_t i = 0; i < files.size(); ++i) {
    Shard shard{.file_name = file_name(i, files.size())};
    for (const auto index : files[i]) {
      shard.tensors.push_back(tensors[index]);
      plan.index.weight_map.emplace(tensors[index].name, shard.file_name);
    }
    plan.shards.push_back(std::move(shard));
  }
  return plan;
}

std::vector<std::string> save_sharded(
    const std::filesystem::path& folder,
    std::span<const TensorView> tensors,
    const SaveOptions& options) {
  const ShardPlan plan = split_into_shards(tensors, options.max_shard_bytes);
  make_folder(folder);
  std::vector<std::string> written;
  for (const auto& shard : plan.shards) {
    write_file(
        folder / shard.file_name,
        shard.tensors,
        {.metadata = options.metadata, .sync = options.sync});
    written.push_back(shard.file_name);
  }
  finish_save(folder, plan.index, options.sync, written);
  return written;
}

StreamedModel::StreamedModel(
    const std::filesystem::path& folder,
    std::span<const TensorSpec> tensors,
    const SaveOptions& options)
    : folder_(folder), sync_(options.sync) {
  const auto layout = lay_out(tensors, {}, folder.string());
  std::vector<std::uint64_t> sizes;
  index_.total_size = 0;
  for (const auto& extent : layout.extents) {
    sizes.push_back(extent.num_bytes);
    *index_.total_size += extent.num_bytes;
  }
  make_folder(folder_);
  const auto files = split_indices(sizes, options.max_shard_bytes);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto name = file_name(i, files.size());
    std::vector<TensorSpec> specs;
    for (const auto index : files[i]) {
      specs.push_back(tensors[index]);
      index_.weight_map.emplace(tensors[index].name, name);
    }
    files_.emplace(
        name,
        std::make_unique<StreamedFile>(
            folder_ / name, specs, options.metadata));
  }
}

void StreamedModel::write(
    const std::string& name,
    std::uint64_t offset,
    std::span<const std::byte> bytes) {
  const auto file = index_.weight_map.find(name);
  if (file == index_.weight_map.end()) {
    throw TensorNotFoundError(str_cat(
        where_tensor(folder_.string(), name),
        " was not declared. Declare every tensor when the model is created"));
  }
  files_.at(file->second)->write(name, offset, bytes);
}

std::vector<std::string> StreamedModel::commit() {
  std::vector<std::string> written;
  for (const auto& [name, file] : files_) {
    file->commit(sync_);
    written.push_back(name);
  }
  finish_save(folder_, index_, sync_, written);
  return written;
}

} // namespace accelerate::safetensors
