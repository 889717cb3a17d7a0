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

/// One row for each rank, or one alone, to their reduction; in fp32 where the
/// rows would be rounded more than once. May write to `rows`.
at::Tensor reduce_rows(const at::Tensor& rows, ReduceOp op);

/// The last step of a mean, in place; nothing for other reductions.
void divide(const at::Tensor& sum, ReduceOp op, int world_size);

} // namespace accelerate
