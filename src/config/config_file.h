// SPDX-License-Identifier: Apache-2.0
// Configuration files, as Hugging Face Accelerate writes them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "config/launch_config.h"

namespace accelerate {

/// A file as read.
struct ConfigFile {
  std::filesystem::path path = {};
  /// Texts of our fields with "FILE:LINE" as their place.
  ConfigLayer values = {};
  /// Keys of other engines, kept for when the file is written again.
  std::map<std::string, nlohmann::json> kept = {};
  /// Those of them that ask for such an engine.
  std::vector<ForeignSetting> foreign = {};
  std::vector<std::string> notes = {};
};

/// Reads a YAML or JSON file of this program or of any version of Hugging Face
/// Accelerate since 0.11. Throws `ConfigError` with the file and the line where
/// it cannot be read, is malformed, has a key twice, has an unknown key (the
/// nearest known one is proposed), or a value of the wrong type.
ACCELERATE_API ConfigFile read_config_file(const std::filesystem::path& path);

/// The same for text that is already there; `path` is for messages.
ACCELERATE_API ConfigFile
parse_config(std::string_view text, const std::filesystem::path& path);

} // namespace accelerate
