// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/layout.h"

#include <algorithm>
#include <numeric>

#include "core/base/str.h"
#include "core/base/utf8.h"
#include "core/safetensors/header.h"
#include "core/safetensors/shown.h"

namespace accelerate::safetensors {
namespace {

HeaderEntry checked_entry(
    const TensorSpec& tensor,
    std::uint64_t begin,
    const std::string& target) {
  const auto where = [&] { return where_tensor(target, tensor.name); };
  HeaderEntry entry{.name = tensor.name, .dtype = tensor.dtype, .shape = {}};
  for (const auto dim : tensor.shape) {
    if (dim < 0) {
      throw UsageError(str_cat(
          where(),
          ": the shape contains ",
          dim,
          ". Use dimensions of 0 or more"));
    }
    entry.shape.push_back(static_cast<std::uint64_t>(dim));
  }
  if (tensor.name == "__metadata__") {
    throw UsageError(
        str_cat(where(), " has a name that the format reserves. Rename it"));
  }
  entry.begin = begin;
  entry.end = begin + checked_num_bytes(entry, target);
  return entry;
}

void check_text(const std::string& text, const std::string& target) {
  if (find_invalid_utf8(text)) {
    throw InvalidUtf8Error(str_cat(
        "[safetensors] '",
        target,
        "': the name or metadata ",
        shown(text),
        " is not valid UTF-8, which the format requires. Rename it"));
  }
}

// Orders the widest type first, so that every tensor is aligned to its element
// size.
std::vector<std::size_t> sorted(std::span<const TensorSpec> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    const auto& a = tensors[i];
    const auto& b = tensors[j];
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  return order;
}

void check_names(
    std::span<const TensorSpec> tensors,
    const std::string& target) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    check_text(tensor.name, target);
    names.push_back(tensor.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    throw DuplicateNameError(str_cat(
        "[safetensors] '",
        target,
        "': two tensors are named ",
        shown(*twice),
        "; give each its own name"));
  }
}

} // namespace

FileLayout lay_out(
    std::span<const TensorSpec> tensors,
    const Metadata& metadata,
    const std::string& target) {
  check_names(tensors, target);
  for (const auto& [key, value] : metadata) {
    check_text(key, target);
    check_text(value, target);
  }
  FileLayout layout{.head = {}, .extents = {}, .order = sorted(tensors)};
  std::vector<HeaderEntry> entries;
  entries.reserve(tensors.size());
  std::uint64_t offset = 0;
  for (const auto index : layout.order) {
    entries.push_back(checked_entry(tensors[index], offset, target));
    offset = entries.back().end;
  }
  const std::string header = format_header_json(metadata, entries);
  if (header.size() > kMaxHeaderBytes) {
    throw HeaderTooLargeError(str_cat(
        "[safetensors] '",
        target,
        "': the header has ",
        header.size(),
        " bytes, but at most ",
        kMaxHeaderBytes,
        " are allowed; split the tensors across several files"));
  }
  constexpr std::size_t kLengthDigits = 8;
  for (std::size_t i = 0; i < kLengthDigits; ++i) {
    layout.head += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  layout.head += header;
  layout.extents.resize(tensors.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    layout.extents[layout.order[i]] = {
        layout.head.size() + entries[i].begin,
        entries[i].end - entries[i].begin};
  }
  layout.total_bytes = layout.head.size() + offset;
  return layout;
}

} // namespace accelerate::safetensors
