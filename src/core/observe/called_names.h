// SPDX-License-Identifier: Apache-2.0
// Names of ranks and operations in messages.
#pragma once

#include <string>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// "rank 3", "ranks 0, 2-5".
ACCELERATE_INTERNAL std::string name_ranks(std::vector<int> ranks);

/// An operation of a group in the form in which users call it: "gather()" for
/// "gather", "all_reduce(Float[4])" for "all_reduce Float[4]". Other strings
/// are unchanged.
ACCELERATE_INTERNAL std::string as_called(const std::string& operation);

} // namespace accelerate
