// SPDX-License-Identifier: Apache-2.0
// What `Accelerator::prepare` passes to a loader, and the loader's loop.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>

#include "accelerate/data/data_loader_options.h"
#include "accelerate/data/samplers.h"
#include "accelerate/distributed/process_group.h"
#include "accelerate/export.h"

namespace accelerate {

class StepState;

namespace detail {

/// What `Accelerator::prepare` passes to a loader.
struct LoaderContext {
  ProcessGroup group = {};
  ShardOptions shard = {};
  /// Whether each batch contains the samples of all ranks of `shard`.
  bool is_merged = false;
  /// The device that batches are moved to. If unset, they are not moved.
  std::optional<c10::Device> device = {};
  DataLoaderConfiguration configuration = {};
  std::shared_ptr<StepState> step_state = {};
};

/// One loop over a loader.
class ACCELERATE_API BatchCursor {
 public:
  virtual ~BatchCursor();
  /// Moves to the next batch. Rethrows exceptions from reading it.
  virtual void advance() = 0;
  /// The current batch, or null after the last one.
  virtual void* batch() const = 0;
};

} // namespace detail
} // namespace accelerate
