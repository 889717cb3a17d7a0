// SPDX-License-Identifier: Apache-2.0
// Validates arguments of collectives for every backend, before anything is
// sent, even on a single rank.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/distributed/process_group.h"

namespace accelerate {

/// "sum", "mean", ...
const char* name_of(ReduceOp op);

/// Throws `UsageError` if the group has no such rank.
void check_root(const ProcessGroup& group, const char* operation, int root);

/// Whether the tensor is strided, in memory and not quantized.
bool is_dense(const at::Tensor& tensor);

/// Throws `UsageError` for undefined, sparse and quantized tensors.
void check_dense(const char* operation, const at::Tensor& tensor);

/// Like `check_dense`, and also rejects dtypes that the reduction does not
/// support. See `ReduceOp`.
void check_reducible(
    const char* operation,
    const at::Tensor& tensor,
    ReduceOp op);

} // namespace accelerate
