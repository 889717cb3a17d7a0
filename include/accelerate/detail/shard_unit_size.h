// SPDX-License-Identifier: Apache-2.0
// The default size of shard units. This header does not need torch, because
// memory estimates also use it.
#pragma once

#include <cstdint>

namespace accelerate::detail {

/// Units with fewer elements are merged: `ShardingOptions::min_unit_numbers`.
inline constexpr std::int64_t kMinUnitElements = 65'536;

} // namespace accelerate::detail
