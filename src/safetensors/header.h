// SPDX-License-Identifier: Apache-2.0
// The arithmetic that readers and writers share.
#pragma once

#include <cstdint>
#include <string>

#include "safetensors/header_json.h"

namespace accelerate::safetensors {

/// Bytes that shape and dtype ask for. Throws `ShapeOverflowError` and
/// `MisalignedTensorError`, with `source` as the name of the file.
std::uint64_t checked_num_bytes(
    const HeaderEntry& entry,
    const std::string& source);

/// "[safetensors] 'source', tensor 'name'".
std::string where_tensor(const std::string& source, const std::string& name);

} // namespace accelerate::safetensors
