// SPDX-License-Identifier: Apache-2.0
// Configuration files in Hugging Face Accelerate's format.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"
#include "core/config/launch_config.h"

namespace accelerate {

/// The content of a file.
struct ConfigFile {
  std::filesystem::path path = {};
  /// Values of our fields as strings, with "FILE:LINE" as their position.
  ConfigLayer values = {};
  /// The whole content in the current format: old keys are renamed, and keys
  /// that no version uses any more are dropped.
  nlohmann::json document = nlohmann::json::object();
  /// Keys that request an unsupported engine.
  std::vector<ForeignSetting> foreign = {};
  std::vector<std::string> notes = {};
};

/// Reads a YAML or JSON file of this program or of any version of Hugging Face
/// Accelerate since 0.11. Throws `ConfigError` with the file and line if it
/// cannot be read, is malformed, or has a duplicate key, an unknown key (with
/// the nearest known one as a suggestion), or a value of the wrong type.
ACCELERATE_INTERNAL ConfigFile
read_config_file(const std::filesystem::path& path);

/// Like `read_config_file`, but for text in memory. `path` is only used in
/// messages.
ACCELERATE_INTERNAL ConfigFile
parse_config(std::string_view text, const std::filesystem::path& path);

/// The defaults, overridden by the values of a file.
ACCELERATE_INTERNAL LaunchConfig values_of(const ConfigFile& file);

/// The document that Hugging Face's questionnaire writes for these values. Keys
/// that only this program knows are included if they differ from the default.
ACCELERATE_INTERNAL nlohmann::json to_document(const LaunchConfig& config);

/// Adds the keys of `to_document` that a document lacks, and drops empty
/// sections. If a file requests several processes but names neither GPUs nor
/// CPUs, this machine's devices are filled in, as in a launch.
ACCELERATE_INTERNAL nlohmann::json complete_document(
    const ConfigFile& file,
    int num_gpus);

/// The file that `write_config_file` replaces: follows links, even dangling
/// ones. Throws `SystemError` if something other than a regular file exists
/// there.
ACCELERATE_INTERNAL std::filesystem::path config_target(
    const std::filesystem::path& path);

/// Atomically writes a document as YAML, or as JSON if the name ends in .json.
/// Missing folders are created. Throws `SystemError`.
ACCELERATE_INTERNAL void write_config_file(
    const std::filesystem::path& path,
    const nlohmann::json& document);

} // namespace accelerate
