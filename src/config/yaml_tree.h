// SPDX-License-Identifier: Apache-2.0
// YAML and JSON text as a checked tree.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// One key of a mapping.
struct YamlEntry {
  std::string key = {};
  /// Line of the value, from 1.
  int line = 0;
  /// Typed as Python's YAML loader has it: an unquoted `no` is a boolean.
  nlohmann::json value = {};
  /// The scalar as written; empty for mappings and lists.
  std::string text = {};
  /// Where the value is a mapping.
  std::vector<YamlEntry> entries = {};
};

/// The entries of the mapping that `text` holds, in their order. Throws
/// `ConfigError` with `path` and the line where the text is not one mapping,
/// is not UTF-8, has a key twice, or is too large or nested too deeply.
ACCELERATE_API std::vector<YamlEntry> parse_yaml_mapping(
    std::string_view text,
    const std::filesystem::path& path);

/// `value` as YAML that Python's loader reads back with the same types, keys
/// sorted.
ACCELERATE_API std::string to_yaml(const nlohmann::json& value);

} // namespace accelerate
