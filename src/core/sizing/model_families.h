// SPDX-License-Identifier: Apache-2.0
// Properties of models that are not in their files.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/safetensors.h"

namespace accelerate {

/// Tensors that a model creates itself and does not save, such as position ids.
enum class UnsavedBuffers {
  kNone,
  kPositionIds,
  kPositionAndTypeIds,
  kRotary,
  kRotaryAndEmbedScale,
};

/// A family of models, by the `model_type` in config.json.
struct ModelFamily {
  std::string_view model_type = {};
  /// Modules that are not split over devices, as path suffixes. "*" matches a
  /// number.
  std::vector<std::string_view> blocks = {};
  UnsavedBuffers buffers = UnsavedBuffers::kNone;
};

/// The family of a model type. Null if it is unknown.
const ModelFamily* find_family(const std::string& model_type);

struct UnsavedBuffer {
  std::string name = {};
  std::int64_t num_bytes = 0;
};

/// The unsaved buffers of a model with these tensors and this config.json.
std::vector<UnsavedBuffer> unsaved_buffers(
    const ModelFamily& family,
    const std::vector<safetensors::TensorView>& tensors,
    const nlohmann::json& config);

} // namespace accelerate
