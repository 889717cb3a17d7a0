// SPDX-License-Identifier: Apache-2.0
// How a manifest says which elements of a tensor a rank has saved.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/tensor_pieces.h"

namespace accelerate {

/// Marks a value of a manifest that describes such elements.
inline constexpr const char* kSliceRecord = "slice";

struct ACCELERATE_API SliceRecord {
  std::vector<std::int64_t> shape = {};
  TensorPieces pieces = {};

  nlohmann::json to_json() const;
  /// `num_values` is how many elements the file has. Throws `UsageError` if the
  /// pieces do not lie in the tensor or have another number of elements, and
  /// what nlohmann's functions throw if the value has another form.
  static SliceRecord parse(
      const nlohmann::json& value,
      std::int64_t num_values);
};

} // namespace accelerate
