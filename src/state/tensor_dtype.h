// SPDX-License-Identifier: Apache-2.0
// Torch's dtypes and those of safetensors files.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "accelerate/export.h"
#include "accelerate/safetensors.h"

namespace accelerate {

/// Nothing where the other side has none.
ACCELERATE_API std::optional<safetensors::Dtype> file_dtype(
    c10::ScalarType dtype);
ACCELERATE_API std::optional<c10::ScalarType> torch_dtype(
    safetensors::Dtype dtype);

} // namespace accelerate
