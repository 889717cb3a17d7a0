// SPDX-License-Identifier: Apache-2.0
// The arithmetic of reductions, as far as it is done here.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "accelerate/process_group.h"

namespace accelerate {

/// What the backend is to do for `op`; `divide` follows it.
c10d::ReduceOp to_c10d(ReduceOp op, at::ScalarType dtype);

/// Whether the tensor has to be widened to fp32 before it is reduced.
bool is_reduced_wide(const at::Tensor& tensor, ReduceOp op);

/// Whether the tensor travels `as_ordered`: backends lose NaN in comparisons.
bool is_reduced_ordered(const at::Tensor& tensor, ReduceOp op);
/// Floating numbers as whole ones of the same order, among which NaN is the
/// greatest (`kMax`) or the least (`kMin`), and back.
at::Tensor as_ordered(const at::Tensor& tensor, ReduceOp op);
at::Tensor from_ordered(const at::Tensor& ordered);

/// One row for each rank, or one alone, to their reduction; in fp32 where the
/// rows would be rounded more than once. May write to `rows`.
at::Tensor reduce_rows(const at::Tensor& rows, ReduceOp op);

/// The last step of a mean, in place; nothing for other reductions.
void divide(const at::Tensor& sum, ReduceOp op, int world_size);

} // namespace accelerate
