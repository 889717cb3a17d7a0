// SPDX-License-Identifier: Apache-2.0
// Modules that communicate with other ranks, and the inputs of SyncBatchNorm.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

#include "accelerate/distributed/process_group.h"
#include "accelerate/export.h"

namespace accelerate::detail {

/// A module that communicates with other ranks in its forward or backward pass.
/// `prepare` finds such modules in a model and passes them its group.
class ACCELERATE_API NeedsProcessGroup {
 public:
  virtual ~NeedsProcessGroup() = default;
  virtual void set_process_group(const ProcessGroup& group) = 0;
};

ACCELERATE_API void give_process_group(
    torch::nn::Module& module,
    const ProcessGroup& group);

/// The inputs of one training forward pass of SyncBatchNorm. `momentum` is the
/// weight of this batch in the running statistics. The running statistics may
/// be undefined.
struct SyncBatchNormInput {
  at::Tensor input, weight, bias, running_mean, running_var;
  double momentum = 0;
  double eps = 0;
};
ACCELERATE_API at::Tensor sync_batch_norm(
    const ProcessGroup& group,
    const SyncBatchNormInput& in);
ACCELERATE_API void
check_batch_norm_dim(const at::Tensor& input, int64_t least, int64_t most);

} // namespace accelerate::detail
