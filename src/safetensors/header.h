// SPDX-License-Identifier: Apache-2.0
// The arithmetic that readers and writers share.
#pragma once

#include <cstdint>
#include <string>

#include "safetensors/header_json.h"

namespace accelerate::safetensors {

/// Bytes that shape and dtype ask for. `where` begins the message of the
/// errors: `ShapeOverflowError`, `MisalignedTensorError`.
std::uint64_t checked_num_bytes(
    const HeaderEntry& entry,
    const std::string& where);

/// "[safetensors] 'source', tensor 'name'".
std::string where_tensor(const std::string& source, const std::string& name);

} // namespace accelerate::safetensors
