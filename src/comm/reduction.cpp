// SPDX-License-Identifier: Apache-2.0
#include "comm/reduction.h"

#include <ATen/ATen.h>

namespace accelerate {

c10d::ReduceOp to_c10d(ReduceOp op, at::ScalarType dtype) {
  switch (op) {
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      break;
  }
  // Gloo adds the bytes of a bool to what is none.
  return dtype == at::kBool ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

// A sum of fp16 may overflow where its mean does not.
bool is_reduced_wide(const at::Tensor& tensor, ReduceOp op) {
  return op == ReduceOp::kMean &&
         at::isReducedFloatingType(tensor.scalar_type());
}

at::Tensor reduce_rows(const at::Tensor& rows, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return rows.amax(0);
    case ReduceOp::kMin:
      return rows.amin(0);
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      break;
  }
  const auto size = rows.size(0);
  const bool is_rounded_between =
      size > 2 && at::isReducedFloatingType(rows.scalar_type());
  auto sum = is_rounded_between || is_reduced_wide(rows, op)
                 ? rows[0].to(at::kFloat)
                 : rows[0];
  for (int64_t i = 1; i < size; ++i) {
    sum.add_(rows[i]);
  }
  return sum;
}

void divide(const at::Tensor& sum, ReduceOp op, int world_size) {
  if (op == ReduceOp::kMean) {
    sum.div_(world_size);
  }
}

} // namespace accelerate
