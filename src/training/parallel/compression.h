// SPDX-License-Identifier: Apache-2.0
// Gradient compression.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "accelerate/distributed/ddp.h"
#include "accelerate/state/stateful.h"
#include "core/base/internal.h"

namespace accelerate {

/// State shared by an engine and its hooks.
struct CompressionState {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  /// The number of ranks that take part in the step. Gradients are divided by
  /// it.
  int64_t divisor = 1;
  /// Bytes passed to all-reduce so far.
  int64_t bytes_sent = 0;
  /// Returns the model's name of a parameter. State is saved by name, because
  /// the layout of buckets differs between runs.
  std::function<std::string(const at::Tensor& parameter)> name_of;
};

/// One kind of compression.
struct CompressionHook {
  /// The hook for a c10d Reducer. Null if gradients are not compressed.
  std::unique_ptr<c10d::CommHookInterface> hook;
  /// State kept between steps. Null if there is none.
  std::shared_ptr<Stateful> memory;
};

/// Throws `UsageError` on invalid options.
ACCELERATE_INTERNAL CompressionHook make_compression(
    const DdpOptions& options,
    std::shared_ptr<CompressionState> state);

/// Makes the hook of a compression that casts gradients.
CompressionHook make_cast_compression(
    at::ScalarType dtype,
    std::shared_ptr<CompressionState> state);
CompressionHook make_power_sgd(
    const PowerSgdOptions& options,
    std::shared_ptr<CompressionState> state);

/// Starts an all-reduce sum, and counts its bytes.
c10::intrusive_ptr<c10d::Work> start_sum(
    CompressionState& state,
    const at::Tensor& tensor);

} // namespace accelerate
