// SPDX-License-Identifier: Apache-2.0
#include "comm/agreement.h"

#include <ATen/ATen.h>

#include <map>

#include "accelerate/error.h"
#include "base/stable_hash.h"
#include "base/str.h"

namespace accelerate {
namespace {

// A header of this many numbers travels in one small exchange: a hash, the
// number of tensors, and the free sizes of the first tensors.
constexpr int64_t kHeaderSize = 16;
constexpr int64_t kSizesInHeader = kHeaderSize - 2;

bool has_dim(const at::Tensor& tensor, FreeDim free) {
  return free.dim >= 0 && free.dim < tensor.dim();
}

std::string describe(
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free) {
  std::string text = operation + " of " + leaves.structure;
  for (const auto& tensor : leaves.tensors) {
    if (!tensor.defined()) {
      text += " undefined";
      continue;
    }
    text += str_cat(' ', c10::toString(tensor.scalar_type()), '[');
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      text += dim > 0 ? "," : "";
      text += dim == free.dim || tensor.dim() <= free.dim
                  ? "*"
                  : std::to_string(tensor.size(dim));
    }
    text += ']';
  }
  return text;
}

[[noreturn]] void throw_mismatch(
    const ProcessGroup& group,
    const std::string& operation,
    const std::string& description) {
  const auto all = group.all_gather_bytes(description);
  std::map<std::string, int> votes;
  for (const auto& text : all) {
    ++votes[text];
  }
  // The most common description is taken for the right one; rank 0's on a tie.
  std::string usual = all[0];
  for (const auto& text : all) {
    if (votes[text] > votes[usual]) {
      usual = text;
    }
  }
  std::string odd;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != usual) {
      odd += str_cat(
          odd.empty() ? "" : "; ", "rank ", rank, " brought <", all[rank], ">");
    }
  }
  throw MismatchError(str_cat(
      "[",
      operation,
      "] ",
      odd,
      " where the others brought <",
      usual,
      ">; call it with values of the same structure, dtype and shape on all "
      "ranks"));
}

} // namespace

Agreement agree(
    const ProcessGroup& group,
    const std::string& operation,
    const detail::Leaves& leaves,
    FreeDim free) {
  std::vector<int64_t> sizes;
  for (const auto& tensor : leaves.tensors) {
    const bool is_free = tensor.defined() && has_dim(tensor, free);
    sizes.push_back(is_free ? tensor.size(free.dim) : 0);
  }
  if (group.world_size() == 1) {
    return {{sizes}};
  }
  const std::string description = describe(operation, leaves, free);
  const auto num_tensors = static_cast<int64_t>(sizes.size());
  auto header = at::zeros({kHeaderSize}, at::kLong);
  auto* words = header.data_ptr<int64_t>();
  words[0] = static_cast<int64_t>(stable_hash(description));
  words[1] = num_tensors;
  std::copy_n(sizes.begin(), std::min(num_tensors, kSizesInHeader), words + 2);
  const auto headers = group.all_gather(header);
  const auto* rows = headers.data_ptr<int64_t>();
  for (int rank = 1; rank < group.world_size(); ++rank) {
    if (rows[rank * kHeaderSize] != rows[0]) {
      throw_mismatch(group, operation, description);
    }
  }
  at::Tensor all_sizes = headers.slice(1, 2).contiguous();
  if (num_tensors > kSizesInHeader) {
    all_sizes = group.all_gather(at::tensor(sizes, at::kLong));
  }
  Agreement agreement;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const auto* first = all_sizes[rank].data_ptr<int64_t>();
    agreement.free_sizes.emplace_back(first, first + num_tensors);
  }
  return agreement;
}

void agree_on_text(
    const ProcessGroup& group,
    const std::string& operation,
    const std::string& description) {
  agree(group, operation, {{}, description}, {});
}

} // namespace accelerate
