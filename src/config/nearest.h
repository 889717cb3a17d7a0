// SPDX-License-Identifier: Apache-2.0
// What a misspelt name was probably meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// Insertions, deletions, replacements and swaps of neighbours between two
/// texts.
ACCELERATE_API int edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest distance to `name`; empty where even that
/// one differs in more than a third of its letters.
ACCELERATE_API std::string nearest_name(
    std::string_view name,
    const std::vector<std::string>& candidates);

} // namespace accelerate
