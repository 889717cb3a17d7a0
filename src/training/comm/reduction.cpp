// SPDX-License-Identifier: Apache-2.0
#include "training/comm/reduction.h"

#include <ATen/ATen.h>

#include <limits>

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
  // Gloo would sum the bytes of booleans to invalid values.
  return dtype == at::kBool ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

// A sum of fp16 values may overflow even if their mean does not.
bool is_reduced_wide(const at::Tensor& tensor, ReduceOp op) {
  return op == ReduceOp::kMean &&
         at::isReducedFloatingType(tensor.scalar_type());
}

bool is_reduced_ordered(const at::Tensor& tensor, ReduceOp op) {
  return (op == ReduceOp::kMax || op == ReduceOp::kMin) &&
         tensor.is_floating_point();
}

namespace {

// As integers, the bits of negative numbers have the reverse order.
at::Tensor with_order_of_negatives_reversed(const at::Tensor& bits) {
  const auto others = bits.scalar_type() == at::kLong
                          ? std::numeric_limits<int64_t>::max()
                          : std::numeric_limits<int32_t>::max();
  return at::where(bits < 0, bits.bitwise_xor(others), bits);
}

} // namespace

at::Tensor as_ordered(const at::Tensor& tensor, ReduceOp op) {
  const bool is_double = tensor.scalar_type() == at::kDouble;
  const auto wide =
      tensor.detach().to(is_double ? at::kDouble : at::kFloat).contiguous();
  auto ordered = with_order_of_negatives_reversed(
      wide.view(is_double ? at::kLong : at::kInt));
  const auto limit = [&](auto type) {
    using Limits = std::numeric_limits<decltype(type)>;
    return at::Scalar(op == ReduceOp::kMax ? Limits::max() : Limits::min());
  };
  return ordered.masked_fill_(
      wide.isnan(), is_double ? limit(int64_t()) : limit(int32_t()));
}

// The limits of integers become NaN.
at::Tensor from_ordered(const at::Tensor& ordered) {
  return with_order_of_negatives_reversed(ordered).view(
      ordered.scalar_type() == at::kLong ? at::kDouble : at::kFloat);
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
