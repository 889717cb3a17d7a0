// SPDX-License-Identifier: Apache-2.0
// Modules that speak to the other ranks, and what the first of them computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

#include "accelerate/export.h"
#include "accelerate/process_group.h"

namespace accelerate::detail {

/// A module that speaks to the other ranks in its forward or backward.
/// `prepare` finds those in a model and hands them its group.
class ACCELERATE_API NeedsProcessGroup {
 public:
  virtual ~NeedsProcessGroup() = default;
  virtual void set_process_group(const ProcessGroup& group) = 0;
};

ACCELERATE_API void give_process_group(
    torch::nn::Module& module,
    const ProcessGroup& group);

/// The tensors and numbers of one training forward. `momentum` is the weight of
/// this batch in the running statistics, which may be undefined.
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
