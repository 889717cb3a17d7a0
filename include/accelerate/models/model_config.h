// SPDX-License-Identifier: Apache-2.0
// The `config.json` of a Hugging Face folder.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"

namespace accelerate::models {

/// A configuration: named values, read and written as JSON. Unknown keys are
/// kept and written back. This is a value type, so copies are independent.
///
///     using namespace accelerate::models;
///     auto config = ModelConfig::parse(R"({"model_type": "bert",
///         "hidden_size": 256, "num_hidden_layers": 4,
///         "num_attention_heads": 4, "intermediate_size": 1024})");
///     auto model = AutoModel::from_config(config);
///
/// Getters treat a null value as a missing key. If a value has a different
/// type, they throw a `ConfigError` that names the file, the key and the value.
class ACCELERATE_API ModelConfig {
 public:
  /// Reads the `config.json` of a folder. Throws `ConfigError` if the folder or
  /// file does not exist, or if the file is not a JSON object.
  static ModelConfig read(const std::filesystem::path& folder);
  /// `source` is the name of the text in messages.
  static ModelConfig parse(
      std::string_view text,
      std::string source = "the configuration");

  ModelConfig(const ModelConfig& other);
  ModelConfig(ModelConfig&& other) noexcept;
  ModelConfig& operator=(ModelConfig other) noexcept;
  ~ModelConfig();

  /// Returns "bert", "gpt2", ... Throws `ConfigError` if it is missing.
  std::string model_type() const;
  bool has(const char* key) const;
  /// Returns a positive integer, or `fallback` if the key is missing.
  int64_t size(const char* key, int64_t fallback) const;
  std::optional<int64_t> integer(const char* key) const;
  /// Reads one integer or a list of integers. Empty if the key is missing.
  std::vector<int64_t> integers(const char* key) const;
  double number(const char* key, double fallback) const;
  bool boolean(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  /// The object under a key, as a configuration (empty if the key is missing).
  ModelConfig section(const char* key) const;

  /// The number of classes of a classifier: the size of `id2label`, or else
  /// `num_labels`, or else 2.
  int64_t num_labels() const;
  /// The class names of `id2label`, or else "LABEL_0", "LABEL_1", ...
  std::vector<std::string> labels() const;
  /// Sets `id2label` and `label2id`.
  void set_labels(const std::vector<std::string>& labels);

  void set(const char* key, const std::string& value);
  void set(const char* key, const char* value) { set(key, std::string(value)); }
  template <std::integral Number>
  void set(const char* key, Number value) {
    set_integer(key, static_cast<int64_t>(value));
  }
  void set(const char* key, double value);
  void set(const char* key, bool value);
  void set(const char* key, const std::vector<std::string>& values);

  /// The text of `config.json`, with sorted keys and indented by 2.
  std::string json() const;
  /// The file that was read, for messages.
  const std::string& source() const;
  /// Throws `ConfigError`: "[ModelConfig] SOURCE: " followed by `what`.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  struct Impl;
  explicit ModelConfig(std::unique_ptr<Impl> impl);
  void set_integer(const char* key, int64_t value);

  std::unique_ptr<Impl> impl_;
};

} // namespace accelerate::models
