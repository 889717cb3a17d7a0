// SPDX-License-Identifier: Apache-2.0
// A simulated accelerator: torch's device type for out-of-tree hardware, with
// its memory on the host and the CPU's kernels. It provides what a hardware
// vendor provides: an allocator, a guard, hooks, generators, operators, casts
// and a backend for collectives. `accelerate` learns about it from one row.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "accelerate/export.h"

namespace accelerate::testing {

constexpr const char* kPretendName = "pretend";
constexpr const char* kPretendBackend = "pretend_ccl";
constexpr int kNumPretendDevices = 2;

/// Registers the devices with torch and `accelerate`; no effect if called
/// again.
ACCELERATE_API void register_pretend_accelerator();

/// Counts of requests to the devices.
struct PretendCounts {
  std::atomic<int64_t> kernels{0};
  std::atomic<int64_t> copies_on_side_streams{0};
  std::atomic<int64_t> collectives{0};
  std::atomic<int64_t> emptied_caches{0};
  /// Memory in use, and its maximum since it was last reset.
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> peak_bytes{0};
};
ACCELERATE_API PretendCounts& pretend_counts();

/// While it is set, events report that the devices have not passed them.
ACCELERATE_API std::atomic<bool>& pretend_is_behind();

/// The backend: Gloo on the memory of the devices. Rejects CPU tensors.
ACCELERATE_API c10::intrusive_ptr<c10d::Backend> make_pretend_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int world_size,
    std::chrono::milliseconds timeout);

} // namespace accelerate::testing
