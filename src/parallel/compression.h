// SPDX-License-Identifier: Apache-2.0
// Gradients in fewer bytes on their way to the other ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "accelerate/ddp.h"
#include "accelerate/export.h"
#include "accelerate/stateful.h"

namespace accelerate {

/// What hooks of one engine share with it.
struct CompressionState {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  /// Gradients are divided by this: the ranks that take part in the step.
  int64_t divisor = 1;
  /// Bytes handed to all-reduce so far.
  int64_t bytes_sent = 0;
  /// What the model calls a parameter: state is saved by it, as buckets are
  /// laid out anew in every run.
  std::function<std::string(const at::Tensor& parameter)> name_of;
};

/// A way to compress, as an engine uses it.
struct CompressionHook {
  /// For a c10d Reducer; null where gradients travel as they are.
  std::unique_ptr<c10d::CommHookInterface> hook;
  /// What is kept between steps; null where nothing is.
  std::shared_ptr<Stateful> memory;
};

/// Throws `UsageError` on options that cannot be.
ACCELERATE_API CompressionHook make_compression(
    const DdpOptions& options,
    std::shared_ptr<CompressionState> state);

/// As above, of one kind.
CompressionHook make_cast_compression(
    at::ScalarType dtype,
    std::shared_ptr<CompressionState> state);
CompressionHook make_power_sgd(
    const PowerSgdOptions& options,
    std::shared_ptr<CompressionState> state);

/// Starts a sum over ranks, and counts its bytes.
c10::intrusive_ptr<c10d::Work> start_sum(
    CompressionState& state,
    const at::Tensor& tensor);

} // namespace accelerate
