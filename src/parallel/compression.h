// SPDX-License-Identifier: Apache-2.0
// Gradients in fewer bytes on their way to the other ranks.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "accelerate/ddp.h"
#include "accelerate/export.h"

namespace accelerate {

/// What hooks of one engine share with it.
struct CompressionState {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  /// Gradients are divided by this: the ranks that take part in the step.
  int64_t divisor = 1;
  /// Bytes handed to all-reduce so far.
  int64_t bytes_sent = 0;
};

/// The hook for a c10d Reducer; null where gradients travel as they are. Throws
/// `UsageError` on options that cannot be.
ACCELERATE_API std::unique_ptr<c10d::CommHookInterface> make_compression_hook(
    const DdpOptions& options,
    std::shared_ptr<CompressionState> state);

/// As above, of one kind.
std::unique_ptr<c10d::CommHookInterface> make_cast_hook(
    at::ScalarType dtype,
    std::shared_ptr<CompressionState> state);
std::unique_ptr<c10d::CommHookInterface> make_power_sgd_hook(
    const PowerSgdOptions& options,
    std::shared_ptr<CompressionState> state);

/// Starts a sum over ranks, and counts its bytes.
c10::intrusive_ptr<c10d::Work> start_sum(
    CompressionState& state,
    const at::Tensor& tensor);

} // namespace accelerate
