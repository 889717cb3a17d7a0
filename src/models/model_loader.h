// SPDX-License-Identifier: Apache-2.0
// Gives a model that was just made its weights, from files or drawn.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "accelerate/models.h"
#include "accelerate/safetensors_index.h"
#include "models/architecture.h"
#include "models/layers.h"

namespace accelerate::models {

/// "float32", "bfloat16", "float16"; nothing for other names.
std::optional<at::ScalarType> try_parse_dtype(const std::string& name);
/// Throws `UsageError` for a dtype that weights cannot have.
std::string dtype_name(at::ScalarType dtype);

struct ModelLoader {
  PretrainedModel& model;
  const Architecture& architecture;
  const Variant& variant;
  const PretrainedOptions& options;

  /// From the files of a folder; what they lack is drawn.
  void load(const std::filesystem::path& folder) const;
  /// New weights everywhere.
  void draw() const;
  /// Reads `generation_config.json` where there is one.
  static void read_generation_config(
      CausalLanguageModel& model,
      const std::filesystem::path& folder);

 private:
  using Parameters = std::map<std::string, at::Tensor>;

  Parameters parameters() const;
  void set_dtype(const safetensors::Checkpoint* files) const;
  /// Parameter -> tensor in the files; fills `unexpected`.
  std::map<std::string, std::string> match(
      const safetensors::Checkpoint& files,
      const Parameters& parameters) const;
  /// Copies; returns what is to be drawn and fills the rest of the report.
  FreshTensors copy(
      const safetensors::Checkpoint& files,
      const Parameters& parameters,
      const std::map<std::string, std::string>& matches) const;
  void draw(const FreshTensors& fresh) const;
  bool is_ignored(const std::string& name) const;
};

} // namespace accelerate::models
