// SPDX-License-Identifier: Apache-2.0
#include "training/comm/arguments.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// Why the reduction is not supported, and what to do; null if it is supported.
const char* fault_of(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return nullptr;
    case at::kComplexFloat:
    case at::kComplexDouble:
      return op == ReduceOp::kSum || op == ReduceOp::kMean
                 ? nullptr
                 : "complex numbers have no order. Reduce "
                   "view_as_real(tensor)";
    case at::kBool:
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return op == ReduceOp::kMean ? "the mean of integers is not an integer. "
                                     "Convert to float first"
                                   : nullptr;
    default:
      return "collectives do not support this dtype. Convert to float or int "
             "first";
  }
}

} // namespace

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      break;
  }
  return "min";
}

void check_root(const ProcessGroup& group, const char* operation, int root) {
  if (root < 0 || root >= group.world_size()) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] root is ",
        root,
        ", expected a rank from 0 to ",
        group.world_size() - 1));
  }
}

bool is_dense(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided &&
         !tensor.is_quantized();
}

void check_dense(const char* operation, const at::Tensor& tensor) {
  if (!is_dense(tensor)) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] The tensor is ",
        !tensor.defined()       ? "undefined. Give it a value first"
        : tensor.is_quantized() ? "quantized. Pass tensor.dequantize()"
                                : "sparse. Pass tensor.to_dense()"));
  }
}

void check_reducible(
    const char* operation,
    const at::Tensor& tensor,
    ReduceOp op) {
  check_dense(operation, tensor);
  if (const auto* fault = fault_of(tensor.scalar_type(), op)) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] Cannot compute the ",
        name_of(op),
        " of ",
        tensor.scalar_type(),
        " tensors: ",
        fault));
  }
}

} // namespace accelerate
