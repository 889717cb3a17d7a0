// SPDX-License-Identifier: Apache-2.0
// The steps of reductions that we compute ourselves.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "accelerate/distributed/process_group.h"

namespace accelerate {

/// The backend's operation for `op`. Call `divide` after it.
c10d::ReduceOp to_c10d(ReduceOp op, at::ScalarType dtype);

/// Whether the tensor must be converted to fp32 before it is reduced.
bool is_reduced_wide(const at::Tensor& tensor, ReduceOp op);

/// Whether the tensor is sent `as_ordered`, because backends lose NaN in
/// comparisons.
bool is_reduced_ordered(const at::Tensor& tensor, ReduceOp op);
/// Maps floating-point values to integers of the same order, with NaN as the
/// maximum (`kMax`) or minimum (`kMin`), and back.
at::Tensor as_ordered(const at::Tensor& tensor, ReduceOp op);
at::Tensor from_ordered(const at::Tensor& ordered);

/// Reduces one row per rank, or a single row. Computes in fp32 if the rows
/// would be rounded more than once. May write to `rows`.
at::Tensor reduce_rows(const at::Tensor& rows, ReduceOp op);

/// The last step of a mean, in place. Has no effect for other reductions.
void divide(const at::Tensor& sum, ReduceOp op, int world_size);

} // namespace accelerate
