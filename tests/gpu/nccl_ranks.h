// SPDX-License-Identifier: Apache-2.0
// What several NCCL ranks need to run on this machine.
#pragma once

#include <string>

#include "support/rank_bodies.h"

namespace accelerate::testing {

struct NcclRanks {
  /// For the rank processes. Empty if each rank has a GPU of its own.
  Variables variables = {};
  /// Why they cannot run here; empty if they can.
  std::string missing = {};
};

/// Ranks share a GPU if there are fewer GPUs than ranks. NCCL 2.30 and later
/// allow that: torch's own, or the library that ACCELERATE_TEST_NCCL names.
/// Throws if that variable names no such library.
NcclRanks nccl_ranks(int num_ranks);

} // namespace accelerate::testing
