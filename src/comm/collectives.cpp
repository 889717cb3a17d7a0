// SPDX-License-Identifier: Apache-2.0
#include "accelerate/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "accelerate/error.h"
#include "base/str.h"
#include "comm/agreement.h"

namespace accelerate::detail {
namespace {

void check_root(const ProcessGroup& group, const char* operation, int root) {
  if (root < 0 || root >= group.world_size()) {
    throw UsageError(str_cat(
        "[",
        operation,
        "] got root ",
        root,
        ", expected a rank from 0 to ",
        group.world_size() - 1));
  }
}

// Scalars become one row, as everybody's scalars form a vector.
Leaves as_rows(const Leaves& leaves) {
  Leaves rows = leaves;
  for (auto& tensor : rows.tensors) {
    tensor = tensor.detach();
    if (tensor.dim() == 0) {
      tensor = tensor.unsqueeze(0);
    }
  }
  return rows;
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

int64_t largest(const Agreement& agreement, size_t tensor) {
  int64_t result = 0;
  for (const auto& sizes : agreement.free_sizes) {
    result = std::max(result, sizes[tensor]);
  }
  return result;
}

// Rows of all ranks, padded to the longest, to one tensor without the padding.
at::Tensor
join(const at::Tensor& rows, const Agreement& agreement, size_t tensor) {
  std::vector<at::Tensor> parts;
  bool is_even = true;
  for (size_t rank = 0; rank < agreement.free_sizes.size(); ++rank) {
    const int64_t size = agreement.free_sizes[rank][tensor];
    is_even = is_even && size == rows.size(1);
    parts.push_back(
        rows.select(0, static_cast<int64_t>(rank)).narrow(0, 0, size));
  }
  return is_even ? rows.flatten(0, 1) : at::cat(parts);
}

} // namespace

std::vector<at::Tensor> all_gather(
    const ProcessGroup& group,
    const Leaves& leaves) {
  const Leaves rows = as_rows(leaves);
  const auto agreement = agree(group, "gather", rows, {0});
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < rows.tensors.size(); ++i) {
    const int64_t size = largest(agreement, i);
    const auto all = group.all_gather(pad(rows.tensors[i], 0, size, 0, false));
    result.push_back(join(all, agreement, i));
  }
  return result;
}

std::optional<std::vector<at::Tensor>>
gather(const ProcessGroup& group, const Leaves& leaves, int root) {
  check_root(group, "gather", root);
  const Leaves rows = as_rows(leaves);
  const auto agreement =
      agree(group, str_cat("gather to rank ", root), rows, {0});
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < rows.tensors.size(); ++i) {
    const int64_t size = largest(agreement, i);
    const auto all =
        group.gather(pad(rows.tensors[i], 0, size, 0, false), root);
    if (group.rank() == root) {
      result.push_back(join(all, agreement, i));
    }
  }
  if (group.rank() != root) {
    return std::nullopt;
  }
  return result;
}

std::vector<at::Tensor>
reduce(const ProcessGroup& group, const Leaves& leaves, ReduceOp op) {
  agree(group, str_cat("reduce ", static_cast<int>(op)), leaves, {});
  std::vector<at::Tensor> result;
  for (const auto& tensor : leaves.tensors) {
    result.push_back(tensor.detach().clone());
    group.all_reduce(result.back(), op);
  }
  return result;
}

void broadcast(const ProcessGroup& group, const Leaves& leaves, int root) {
  check_root(group, "broadcast", root);
  agree(group, str_cat("broadcast from rank ", root), leaves, {});
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
    // Only the root knows shape and dtype: its header tells the others.
    std::vector<int64_t> header = {static_cast<int64_t>(tensor.scalar_type())};
    header.insert(header.end(), tensor.sizes().begin(), tensor.sizes().end());
    const std::string own(
        reinterpret_cast<const char*>(header.data()),
        header.size() * sizeof(int64_t));
    const std::string bytes = group.broadcast_bytes(own, root);
    std::vector<int64_t> shape(bytes.size() / sizeof(int64_t));
    std::copy_n(
        bytes.data(), bytes.size(), reinterpret_cast<char*>(shape.data()));
    const auto dtype = static_cast<at::ScalarType>(shape[0]);
    shape.erase(shape.begin());
    if (shape.empty() || shape[0] % group.world_size() != 0) {
      throw MismatchError(str_cat(
          "[scatter] rank ",
          root,
          " brought ",
          shape.empty() ? "a scalar" : str_cat(shape[0], " rows"),
          ", expected a multiple of ",
          group.world_size(),
          " rows; pad or cut dim 0"));
    }
    shape[0] /= group.world_size();
    auto output =
        at::empty(shape, tensor.options().requires_grad(false).dtype(dtype));
    at::Tensor rows;
    if (group.rank() == root) {
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
        "[pad_across_processes] got dim ",
        dim,
        ", expected 0 or more: count from the front"));
  }
  const auto agreement =
      agree(group, str_cat("pad_across_processes ", dim), leaves, {dim});
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < leaves.tensors.size(); ++i) {
    const auto& tensor = leaves.tensors[i];
    result.push_back(
        dim < tensor.dim()
            ? pad(tensor, dim, largest(agreement, i), pad_index, pad_first)
            : tensor);
  }
  return result;
}

} // namespace accelerate::detail
