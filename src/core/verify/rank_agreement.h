// SPDX-License-Identifier: Apache-2.0
// What the records of several processes show without a record of one process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/verify/process_record.h"
#include "core/verify/verdict.h"

namespace accelerate::verify {

/// Finds mistakes that the library reported, and tensors that should be equal
/// on all ranks but are not. `run` is in rank order. Agrees if it finds
/// nothing.
ACCELERATE_INTERNAL Verdict check_ranks(const std::vector<ProcessRecord>& run);

/// Compares ranks that had the same batch in the first step. Returns what
/// differs, and the likely mistake. Empty if nothing differs.
ACCELERATE_INTERNAL std::string difference_on_same_batch(
    const std::vector<ProcessRecord>& run);

/// The texts that `of` returns for each process, without repetitions.
std::vector<std::string> unique_texts(
    const std::vector<ProcessRecord>& run,
    const std::function<std::vector<std::string>(const ProcessRecord&)>& of);

} // namespace accelerate::verify
