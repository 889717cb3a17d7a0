// SPDX-License-Identifier: Apache-2.0
// Sketches of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "accelerate/distributed/tensor_pieces.h"
#include "core/base/internal.h"
#include "core/verify/process_record.h"

namespace accelerate {

/// The sketch of `values`, which are elements of a tensor in row-major order,
/// from element `begin` on. Sparse tensors count as dense ones. Computes on the
/// tensor's device, with memory for a few million elements.
ACCELERATE_INTERNAL verify::Sketch sketch_of(
    const at::Tensor& values,
    int64_t begin = 0);

/// The sketch of the elements `pieces` of a tensor of this shape.
ACCELERATE_INTERNAL verify::Sketch sketch_of(
    const at::Tensor& values,
    const std::vector<int64_t>& shape,
    const TensorPieces& pieces);

} // namespace accelerate
