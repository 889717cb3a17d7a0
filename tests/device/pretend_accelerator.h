// SPDX-License-Identifier: Apache-2.0
// An accelerator that is not there: torch's device type for foreign hardware,
// with its memory on the host and the CPU's kernels. What it brings is what a
// maker of hardware brings: an allocator, a guard, hooks, generators,
// operators, casts and a backend for collectives. `accelerate` learns of it by
// one row.
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

/// Makes the devices known to torch and to `accelerate`; nothing when called
/// again.
ACCELERATE_API void register_pretend_accelerator();

/// What the devices were asked for.
struct PretendCounts {
  std::atomic<int64_t> kernels{0};
  std::atomic<int64_t> copies_on_side_streams{0};
  std::atomic<int64_t> collectives{0};
  std::atomic<int64_t> emptied_caches{0};
  /// Of memory that is in use, and at most since somebody set it.
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> peak_bytes{0};
};
ACCELERATE_API PretendCounts& pretend_counts();

/// While it is set, events say that the devices have not passed them.
ACCELERATE_API std::atomic<bool>& pretend_is_behind();

/// The backend: Gloo on the memory of the devices. Refuses CPU tensors.
ACCELERATE_API c10::intrusive_ptr<c10d::Backend> make_pretend_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int world_size,
    std::chrono::milliseconds timeout);

} // namespace accelerate::testing
