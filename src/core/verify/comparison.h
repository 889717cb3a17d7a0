// SPDX-License-Identifier: Apache-2.0
// Compares the records of several processes with the record of one process that
// trained on the same samples.
#pragma once

#include <string>
#include <vector>

#include "core/base/internal.h"
#include "core/verify/process_record.h"

namespace accelerate::verify {

enum class Outcome { kAgrees, kDisagrees, kNotComparable };

struct Verdict {
  Outcome outcome = Outcome::kAgrees;
  /// Lines for the user, without a prefix.
  std::vector<std::string> lines = {};
};

/// What the records of several processes show by themselves: mistakes that the
/// library reported, and tensors that should be equal on all ranks but are not.
/// `run` is in rank order. Agrees if it finds nothing.
ACCELERATE_INTERNAL Verdict check_ranks(const std::vector<ProcessRecord>& run);

/// Compares ranks that had the same batch in the first step. Returns what
/// differs, and the likely mistake; empty if nothing does.
ACCELERATE_INTERNAL std::string difference_on_same_batch(
    const std::vector<ProcessRecord>& run);

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
