// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <set>

#include "accelerate/safetensors_index.h"
#include "base/atomic_file.h"
#include "base/str.h"
#include "base/words.h"
#include "safetensors/folder.h"

namespace accelerate::safetensors {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

// Longer names first: "GIB" ends in "B" as "GB" does.
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
          "[safetensors] '",
          (folder / name).string(),
          "', left by an earlier save, cannot be removed: ",
          error.message(),
          "; remove it, or it may be loaded instead of the new files"));
    }
  }
}

} // namespace

std::uint64_t parse_size(std::string_view text) {
  std::string upper(trimmed(text));
  std::transform(
      upper.begin(), upper.end(), upper.begin(), [](unsigned char c) {
        return static_cast<char>(std::toupper(c));
      });
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
      "' is not a number with a unit; give for example 10GB, 5GiB or 1000"));
}

ShardPlan split_into_shards(
    std::span<const TensorView> tensors,
    std::uint64_t max_shard_bytes) {
  ShardPlan plan;
  Shard current;
  std::uint64_t current_bytes = 0;
  std::uint64_t total_bytes = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t bytes = tensor.data.size();
    total_bytes += bytes;
    if (bytes > max_shard_bytes) {
      plan.shards.push_back({.tensors = {tensor}});
      continue;
    }
    if (current_bytes + bytes > max_shard_bytes) {
      plan.shards.push_back(std::move(current));
      current = {};
      current_bytes = 0;
    }
    current.tensors.push_back(tensor);
    current_bytes += bytes;
  }
  if (!current.tensors.empty() || plan.shards.empty()) {
    plan.shards.push_back(std::move(current));
  }
  const std::size_t count = plan.shards.size();
  plan.index.total_size = total_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    Shard& shard = plan.shards[i];
    shard.file_name = count == 1 ? kWeightsName : shard_name(i + 1, count);
    for (const auto& tensor : shard.tensors) {
      plan.index.weight_map.emplace(tensor.name, shard.file_name);
    }
  }
  return plan;
}

std::vector<std::string> save_sharded(
    const std::filesystem::path& folder,
    std::span<const TensorView> tensors,
    const SaveOptions& options) {
  const ShardPlan plan = split_into_shards(tensors, options.max_shard_bytes);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw SystemError(str_cat(
        "[safetensors] the folder '",
        folder.string(),
        "' cannot be made: ",
        error.message(),
        "; give a folder that can be written to"));
  }
  std::vector<std::string> written;
  for (const auto& shard : plan.shards) {
    write_file(
        folder / shard.file_name,
        shard.tensors,
        {.metadata = options.metadata, .sync = options.sync});
    written.push_back(shard.file_name);
  }
  if (plan.is_sharded()) {
    AtomicFile index(folder / kIndexName);
    index.write(format_index(plan.index));
    index.commit(options.sync);
    written.push_back(kIndexName);
  }
  remove_old_weights(folder, written);
  return written;
}

} // namespace accelerate::safetensors
