// SPDX-License-Identifier: Apache-2.0
// Size computations shared by readers and writers.
#pragma once

#include <cstdint>
#include <string>

#include "core/safetensors/header_json.h"

namespace accelerate::safetensors {

/// Bytes required by shape and dtype. Throws `ShapeOverflowError` and
/// `MisalignedTensorError`, with `source` as the name of the file.
std::uint64_t checked_num_bytes(
    const HeaderEntry& entry,
    const std::string& source);

/// "[safetensors] 'source', tensor 'name'".
std::string where_tensor(const std::string& source, const std::string& name);

} // namespace accelerate::safetensors
