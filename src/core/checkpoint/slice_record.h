// SPDX-License-Identifier: Apache-2.0
// How a manifest describes which elements of a tensor a rank has saved.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "accelerate/distributed/tensor_pieces.h"
#include "core/base/internal.h"

namespace accelerate {

/// Marks a value of a manifest that describes a slice.
inline constexpr const char* kSliceRecord = "slice";

struct ACCELERATE_INTERNAL SliceRecord {
  std::vector<std::int64_t> shape = {};
  TensorPieces pieces = {};

  nlohmann::json to_json() const;
  /// `num_values` is the number of elements in the file. Throws `UsageError` if
  /// the pieces are not inside the tensor or have a different number of
  /// elements, and nlohmann's exceptions if the value has a different
  /// structure.
  static SliceRecord parse(
      const nlohmann::json& value,
      std::int64_t num_values);
};

} // namespace accelerate
