// SPDX-License-Identifier: Apache-2.0
// Loads or initialises the weights of a new model.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "accelerate/files/safetensors_index.h"
#include "accelerate/models.h"
#include "models/architecture.h"
#include "models/layers.h"

namespace accelerate::models {

/// The dtype named "float32", "bfloat16" or "float16". Empty for other names.
std::optional<at::ScalarType> try_parse_dtype(const std::string& name);
/// Throws `UsageError` for dtypes that weights cannot have.
std::string dtype_name(at::ScalarType dtype);

struct ModelLoader {
  PretrainedModel& model;
  const Architecture& architecture;
  const Variant& variant;
  const PretrainedOptions& options;

  /// Loads the files of a folder and initialises what they lack.
  void load(const std::filesystem::path& folder) const;
  /// Initialises all weights.
  void draw() const;
  /// Reads `generation_config.json` if it exists.
  static void read_generation_config(
      CausalLanguageModel& model,
      const std::filesystem::path& folder);

 private:
  using Parameters = std::map<std::string, at::Tensor>;

  Parameters parameters() const;
  void set_dtype(const safetensors::Checkpoint* files) const;
  /// Maps parameters to tensors in the files, by name. Fills `unexpected`.
  std::map<std::string, std::string> match(
      const safetensors::Checkpoint& files,
      const Parameters& parameters) const;
  /// Copies values. Returns the parameters to initialise, and fills the rest of
  /// the report.
  FreshTensors copy(
      const safetensors::Checkpoint& files,
      const Parameters& parameters,
      const std::map<std::string, std::string>& matches) const;
  void draw(const FreshTensors& fresh) const;
  bool is_ignored(const std::string& name) const;
};

} // namespace accelerate::models
