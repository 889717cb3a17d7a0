// SPDX-License-Identifier: Apache-2.0
// The requirements for several NCCL ranks on this machine.
#pragma once

#include <string>

#include "support/rank_bodies.h"

namespace accelerate::testing {

struct NcclRanks {
  /// For the rank processes. Empty if each rank has its own GPU.
  Variables variables = {};
  /// Why they cannot run here; empty if they can.
  std::string missing = {};
};

/// Ranks share a GPU if there are fewer GPUs than ranks. NCCL 2.30 and later
/// support that: torch's own, or the library in ACCELERATE_TEST_NCCL. Throws if
/// that does not exist.
NcclRanks nccl_ranks(int num_ranks);

} // namespace accelerate::testing
