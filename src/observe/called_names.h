// SPDX-License-Identifier: Apache-2.0
// How messages name ranks and what they called.
#pragma once

#include <string>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// "rank 3", "ranks 0, 2-5".
ACCELERATE_API std::string name_ranks(std::vector<int> ranks);

/// An operation of a group as a user calls it: "gather()" for "gather",
/// "all_reduce(Float[4])" for "all_reduce Float[4]". Other texts stay as they
/// are.
ACCELERATE_API std::string as_called(const std::string& operation);

} // namespace accelerate
