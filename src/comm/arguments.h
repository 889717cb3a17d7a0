// SPDX-License-Identifier: Apache-2.0
// What collectives take, whatever carries them: refused before anything is
// sent, and on one rank too.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/process_group.h"

namespace accelerate {

/// "sum", "mean", ...
const char* name_of(ReduceOp op);

/// Throws `UsageError` where the group has no such rank.
void check_root(const ProcessGroup& group, const char* operation, int root);

/// Whether the tensor is one of plain numbers in memory.
bool is_dense(const at::Tensor& tensor);

/// Throws `UsageError` for undefined, sparse and quantized tensors.
void check_dense(const char* operation, const at::Tensor& tensor);

/// As `check_dense`, and for dtypes that have no such reduction; see
/// `ReduceOp`.
void check_reducible(
    const char* operation,
    const at::Tensor& tensor,
    ReduceOp op);

} // namespace accelerate
