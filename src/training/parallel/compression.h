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
  /// Gradients are divided by this: the number of ranks that take part in the
  /// step.
  int64_t divisor = 1;
  /// Bytes passed to all-reduce so far.
  int64_t bytes_sent = 0;
  /// The model's name of a parameter. State is saved by name, because every run
  /// lays out buckets differently.
  std::function<std::string(const at::Tensor& parameter)> name_of;
};

/// A kind of compression, as an engine uses it.
struct CompressionHook {
  /// For a c10d Reducer; null if gradients are not compressed.
  std::unique_ptr<c10d::CommHookInterface> hook;
  /// State kept between steps; null if there is none.
  std::shared_ptr<Stateful> memory;
};

/// Throws `UsageError` on invalid options.
ACCELERATE_INTERNAL CompressionHook make_compression(
    const DdpOptions& options,
    std::shared_ptr<CompressionState> state);

/// As above, for one kind.
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
