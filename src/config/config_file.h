// SPDX-License-Identifier: Apache-2.0
// Configuration files, as Hugging Face Accelerate writes them.
#pragma once

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
  /// Everything that the file holds, in the form of today: old keys have
  /// their new names, keys that no version knows any more are gone.
  nlohmann::json document = nlohmann::json::object();
  /// Keys that ask for an engine that this program does not have.
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

/// The defaults with the values of a file.
ACCELERATE_API LaunchConfig values_of(const ConfigFile& file);

/// The file that Hugging Face's questionnaire writes for these values. Keys
/// that only this program knows are there where they differ from the default.
ACCELERATE_API nlohmann::json to_document(const LaunchConfig& config);

/// A document with the keys of `to_document` added where it lacks them; empty
/// sections are left out. Several processes of a file that names neither GPUs
/// nor CPUs are given what this machine has, as a launch gives them.
ACCELERATE_API nlohmann::json complete_document(
    const ConfigFile& file,
    int num_gpus);

/// The file that `write_config_file` replaces: links are followed, also those
/// that lead to nothing yet. Throws `SystemError` where something else than a
/// plain file is there.
ACCELERATE_API std::filesystem::path config_target(
    const std::filesystem::path& path);

/// Writes a document as YAML, or as JSON where the name ends in .json. The file
/// appears at once and whole; missing folders are made. Throws `SystemError`.
ACCELERATE_API void write_config_file(
    const std::filesystem::path& path,
    const nlohmann::json& document);

} // namespace accelerate
