// SPDX-License-Identifier: Apache-2.0
// Compares the records of several processes with the record of one process that
// trained on the same samples.
#pragma once

#include <vector>

#include "core/base/internal.h"
#include "core/verify/process_record.h"
#include "core/verify/verdict.h"

namespace accelerate::verify {

/// Compares losses, gradients and parameters of each step. The tolerance
/// follows from the dtype and from the number of values that a gradient adds
/// up.
///
///     const auto verdict = compare(run, reference, 5);
ACCELERATE_INTERNAL Verdict compare(
    const std::vector<ProcessRecord>& run,
    const ProcessRecord& reference,
    int num_steps);

} // namespace accelerate::verify
