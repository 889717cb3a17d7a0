// SPDX-License-Identifier: Apache-2.0
#include "accelerate/state/tree.h"

#include <ATen/ATen.h>

#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::tree {
namespace detail {

at::Tensor from_numbers(const void* data, int64_t count, at::ScalarType dtype) {
  auto values = count < 0 ? at::empty({}, at::dtype(dtype))
                          : at::empty({count}, at::dtype(dtype));
  if (values.numel() > 0) {
    std::memcpy(values.data_ptr(), data, values.nbytes());
  }
  return values;
}

void to_numbers(const at::Tensor& values, at::ScalarType dtype, void* output) {
  const auto plain = values.detach().to(at::kCPU, dtype).contiguous();
  if (plain.numel() > 0) {
    std::memcpy(output, plain.data_ptr(), plain.nbytes());
  }
}

void throw_not_fitting(const std::string& value, size_t num_bytes) {
  throw UsageError(str_cat(
      "[collective] The number ",
      value,
      " does not fit into ",
      8 * num_bytes,
      " bits. Use a wider type"));
}

void throw_wrong_count(int64_t count, int64_t expected) {
  throw UsageError(str_cat(
      "[collective] Got ",
      count,
      " numbers for a container of ",
      expected,
      ". Use a std::vector or a tensor"));
}

} // namespace detail

void StructureWriter::tensor(at::Tensor& /*value*/) {
  text_ += "T,";
}

void StructureWriter::numbers(Numbers& /*value*/) {
  text_ += "N,";
}

void StructureWriter::enter(std::string_view label, size_t size) {
  text_ += label;
  text_ += std::to_string(size);
  text_ += '(';
}

void StructureWriter::leave() {
  if (text_.back() == ',') {
    text_.pop_back();
  }
  text_ += "),";
}

} // namespace accelerate::tree
