// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"
#include "training/comm/arguments.h"
#include "training/comm/reduction.h"

namespace accelerate::detail {
namespace {

// Scalars become rows of one element, because the scalars of all ranks form a
// vector.
Leaves as_rows(const Leaves& leaves) {
  Leaves rows = leaves;
  for (auto& tensor : rows.tensors) {
    if (tensor.defined()) {
      tensor =
          tensor.dim() == 0 ? tensor.detach().unsqueeze(0) : tensor.detach();
    }
  }
  return rows;
}

// Called after ranks have agreed, so that either all of them throw or none.
void check_all_dense(const char* operation, const Leaves& leaves) {
  for (const auto& tensor : leaves.tensors) {
    check_dense(operation, tensor);
  }
}

at::Tensor pad(
    const at::Tensor& tensor,
    int64_t dim,
    int64_t size,
    double value,
    bool pad_first) {
  const int64_t own = tensor.size(dim);
  if (own == size) {
    return tensor;
  }
  auto shape = tensor.sizes().vec();
  shape[static_cast<size_t>(dim)] = size;
  auto padded = at::full(shape, value, tensor.options().requires_grad(false));
  padded.narrow(dim, pad_first ? size - own : 0, own).copy_(tensor);
  return padded;
}

// Called on all ranks, including those that have nothing to pad.
void check_padding(double value, at::ScalarType dtype) {
  const auto fits = [&] {
    if (!at::isIntegralType(dtype, /*includeBool=*/true)) {
      return true;
    }
    try {
      return at::full({}, value, dtype).item<double>() == value;
    } catch (const std::exception&) {
      return false; // torch throws if it is too large
    }
  };
  if (!fits()) {
    throw UsageError(str_cat(
        "[pad_across_processes] pad_index ",
        value,
        " does not fit into a tensor of dtype ",
        dtype,
        ". Pass another pad_index, or convert the tensor first"));
  }
}

int64_t largest(const ComparisonResult& compared, size_t tensor) {
  int64_t result = 0;
  for (const auto& sizes : compared.free_sizes) {
    result = std::max(result, sizes[tensor]);
  }
  return result;
}

// Joins the rows of all ranks, padded to the longest, to one tensor without the
// padding.
at::Tensor
join(const at::Tensor& rows, const ComparisonResult& compared, size_t tensor) {
  std::vector<at::Tensor> slices;
  bool is_even = true;
  for (size_t rank = 0; rank < compared.free_sizes.size(); ++rank) {
    const int64_t size = compared.free_sizes[rank][tensor];
    is_even = is_even && size == rows.size(1);
    slices.push_back(
        rows.select(0, static_cast<int64_t>(rank)).narrow(0, 0, size));
  }
  return is_even ? rows.flatten(0, 1) : at::cat(slices);
}

// Reduces the values of all ranks.
at::Tensor reduce(const std::vector<at::Tensor>& values, ReduceOp op) {
  const auto rows = at::stack(values);
  const auto reduced =
      reduce_rows(rows.is_complex() ? at::view_as_real(rows) : rows, op);
  divide(reduced, op, static_cast<int>(values.size()));
  return rows.is_complex() ? at::view_as_complex(reduced) : reduced;
}

// A sum that overflowed is off by 2^64, far more than the rounding error of
// doubles.
void check_sum(const at::Tensor& sum, const at::Tensor& rough) {
  const auto off = (sum.to(at::kDouble) - rough).abs();
  if (sum.numel() > 0 && off.max().item<double>() > 0x1p62) {
    throw UsageError(
        "[reduce] The sum does not fit into int64. Convert the values to "
        "double "
        "first");
  }
}

// Like `join` above, for values that were sent with the comparison. The results
// are on the device of `rows`.
std::vector<at::Tensor> join(
    const Leaves& rows,
    const std::vector<std::vector<at::Tensor>>& values) {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < values.size(); ++i) {
    result.push_back(at::cat(values[i]).to(rows.tensors[i].device()));
  }
  return result;
}

} // namespace

std::vector<at::Tensor> all_gather(
    const ProcessGroup& group,
    const Leaves& leaves) {
  const Leaves rows = as_rows(leaves);
  const auto compared =
      agree(group, "gather", rows, {0}, Payload::kSmallValues);
  check_all_dense("gather", rows);
  if (compared.values) {
    return join(rows, *compared.values);
  }
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < rows.tensors.size(); ++i) {
    const int64_t size = largest(compared, i);
    const auto all = group.all_gather(pad(rows.tensors[i], 0, size, 0, false));
    result.push_back(join(all, compared, i));
  }
  return result;
}

std::optional<std::vector<at::Tensor>>
gather_to(const ProcessGroup& group, const Leaves& leaves, int root) {
  check_root(group, "gather_to", root);
  const Leaves rows = as_rows(leaves);
  const auto compared = agree(
      group,
      str_cat("gather to rank ", root),
      rows,
      {0},
      Payload::kSmallValues);
  check_all_dense("gather", rows);
  if (compared.values) {
    return group.rank() == root ? std::optional(join(rows, *compared.values))
                                : std::nullopt;
  }
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < rows.tensors.size(); ++i) {
    const int64_t size = largest(compared, i);
    const auto all =
        group.gather_to(pad(rows.tensors[i], 0, size, 0, false), root);
    if (group.rank() == root) {
      result.push_back(join(all, compared, i));
    }
  }
  if (group.rank() != root) {
    return std::nullopt;
  }
  return result;
}

std::vector<at::Tensor>
reduce(const ProcessGroup& group, const Leaves& leaves, ReduceOp op) {
  const auto compared = agree(
      group,
      str_cat("reduce with ", name_of(op)),
      leaves,
      {},
      Payload::kSmallValues);
  for (const auto& tensor : leaves.tensors) {
    check_reducible("reduce", tensor, op);
  }
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < leaves.tensors.size(); ++i) {
    const auto& own = leaves.tensors[i];
    const auto reduced = [&](at::Tensor value) {
      if (compared.values) {
        std::vector<at::Tensor> values;
        for (const auto& each : (*compared.values)[i]) {
          values.push_back(each.to(value.scalar_type()));
        }
        value.copy_(reduce(values, op));
      } else {
        group.all_reduce(value, op);
      }
      return value;
    };
    result.push_back(reduced(own.detach().clone()));
    const bool is_number = !leaves.are_numbers.empty() && leaves.are_numbers[i];
    if (is_number && op == ReduceOp::kSum && own.scalar_type() == at::kLong) {
      check_sum(result.back(), reduced(own.to(at::kDouble)));
    }
  }
  return result;
}

void broadcast(const ProcessGroup& group, const Leaves& leaves, int root) {
  check_root(group, "broadcast", root);
  agree(group, str_cat("broadcast from rank ", root), leaves, {});
  check_all_dense("broadcast", leaves);
  for (const auto& tensor : leaves.tensors) {
    group.broadcast(tensor.detach(), root);
  }
}

std::vector<at::Tensor>
scatter(const ProcessGroup& group, const Leaves& leaves, int root) {
  check_root(group, "scatter", root);
  agree_on_text(group, str_cat("scatter from rank ", root), leaves.structure);
  std::vector<at::Tensor> result;
  for (const auto& tensor : leaves.tensors) {
    // Only the root knows shape and dtype. Its header sends them to the others.
    // An empty header means that the root has no tensor.
    const bool is_root = group.rank() == root;
    std::vector<int64_t> header;
    if (is_root && tensor.defined()) {
      header = {static_cast<int64_t>(tensor.scalar_type())};
      header.insert(header.end(), tensor.sizes().begin(), tensor.sizes().end());
    }
    const std::string own(
        reinterpret_cast<const char*>(header.data()),
        header.size() * sizeof(int64_t));
    const std::string bytes = group.broadcast_bytes(own, root);
    std::vector<int64_t> shape(bytes.size() / sizeof(int64_t));
    std::copy_n(
        bytes.data(), bytes.size(), reinterpret_cast<char*>(shape.data()));
    if (shape.empty()) {
      throw UsageError(str_cat(
          "[scatter] rank ",
          root,
          " passed an undefined tensor. Give it a value first"));
    }
    const auto dtype = static_cast<at::ScalarType>(shape[0]);
    shape.erase(shape.begin());
    if (shape.empty() || shape[0] % group.world_size() != 0) {
      throw MismatchError(str_cat(
          "[scatter] rank ",
          root,
          " passed ",
          shape.empty() ? "a scalar" : str_cat(shape[0], " rows"),
          ", which cannot be split evenly between ",
          group.world_size(),
          " ranks. Pad or shorten dimension 0"));
    }
    shape[0] /= group.world_size();
    const auto device =
        tensor.defined() ? tensor.device() : c10::Device(c10::kCPU);
    auto output =
        at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
    at::Tensor rows;
    if (is_root) {
      auto split = shape;
      split.insert(split.begin(), group.world_size());
      rows = tensor.detach().reshape(split);
    }
    group.scatter(output, rows, root);
    result.push_back(output);
  }
  return result;
}

std::vector<at::Tensor> pad_across_processes(
    const ProcessGroup& group,
    const Leaves& leaves,
    int64_t dim,
    double pad_index,
    bool pad_first) {
  if (dim < 0) {
    throw UsageError(str_cat(
        "[pad_across_processes] dim is ",
        dim,
        ", expected 0 or more. Count from the first dimension"));
  }
  const auto compared = agree(
      group,
      str_cat("pad_across_processes with dim ", dim),
      leaves,
      {.dim = dim, .are_others_free = true});
  check_all_dense("pad_across_processes", leaves);
  for (const auto& tensor : leaves.tensors) {
    check_padding(pad_index, tensor.scalar_type());
  }
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < leaves.tensors.size(); ++i) {
    const auto& tensor = leaves.tensors[i];
    result.push_back(
        dim < tensor.dim()
            ? pad(tensor, dim, largest(compared, i), pad_index, pad_first)
            : tensor);
  }
  return result;
}

} // namespace accelerate::detail
