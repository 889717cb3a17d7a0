// SPDX-License-Identifier: Apache-2.0
// YAML and JSON as a checked tree.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// One key of a mapping.
struct YamlEntry {
  std::string key = {};
  /// Line of the value, from 1.
  int line = 0;
  /// Typed as in Python's YAML loader: an unquoted `no` is a boolean.
  nlohmann::json value = {};
  /// The scalar as written. Empty for mappings and lists.
  std::string text = {};
  /// The entries of a value that is a mapping.
  std::vector<YamlEntry> entries = {};
};

/// The entries of the mapping in `text`, in order. Throws `ConfigError` with
/// `path` and the line if the text is not a single mapping in UTF-8, has a
/// duplicate key, or is too large or nested too deeply.
ACCELERATE_INTERNAL std::vector<YamlEntry> parse_yaml_mapping(
    std::string_view text,
    const std::filesystem::path& path);

/// `value` as YAML that Python's loader reads back with the same types, with
/// sorted keys.
ACCELERATE_INTERNAL std::string to_yaml(const nlohmann::json& value);

} // namespace accelerate
