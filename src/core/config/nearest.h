// SPDX-License-Identifier: Apache-2.0
// Suggestions for misspelled names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// The number of insertions, deletions, replacements and transpositions between
/// two strings.
ACCELERATE_INTERNAL int edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest distance to `name`. Empty if more than a
/// third of its letters differ.
ACCELERATE_INTERNAL std::string nearest_name(
    std::string_view name,
    const std::vector<std::string>& candidates);

} // namespace accelerate
