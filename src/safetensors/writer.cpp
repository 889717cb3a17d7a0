// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "accelerate/safetensors.h"
#include "base/atomic_file.h"
#include "base/str.h"
#include "base/utf8.h"
#include "safetensors/header.h"
#include "safetensors/shown.h"

namespace accelerate::safetensors {
namespace {

// Everything but the data: the length, the header, and the data's order.
struct Layout {
  std::array<char, 8> length = {};
  std::string header;
  std::vector<const TensorView*> order;
  std::uint64_t total_bytes = 0;
};

HeaderEntry checked_entry(
    const TensorView& tensor,
    std::uint64_t begin,
    const std::string& target) {
  const auto where = [&] { return where_tensor(target, tensor.name); };
  HeaderEntry entry{.name = tensor.name, .dtype = tensor.dtype, .shape = {}};
  for (const auto dim : tensor.shape) {
    if (dim < 0) {
      throw UsageError(str_cat(
          where(),
          ": dimension ",
          dim,
          ", 0 or more expected; give the shape"));
    }
    entry.shape.push_back(static_cast<std::uint64_t>(dim));
  }
  if (tensor.name == "__metadata__") {
    throw UsageError(str_cat(
        where(), " has the name that the format keeps for itself; rename it"));
  }
  if (const auto wanted = checked_num_bytes(entry, target);
      wanted != tensor.data.size()) {
    throw SizeMismatchError(str_cat(
        where(),
        ": ",
        tensor.data.size(),
        " bytes of data, but shape and ",
        dtype_name(tensor.dtype),
        " make ",
        wanted,
        "; give contiguous data of the whole tensor"));
  }
  entry.begin = begin;
  entry.end = begin + tensor.data.size();
  return entry;
}

void check_text(const std::string& text, const std::string& target) {
  if (find_invalid_utf8(text)) {
    throw InvalidUtf8Error(str_cat(
        "[safetensors] '",
        target,
        "': the name or metadata ",
        shown(text),
        " is not UTF-8; the format takes nothing else"));
  }
}

// Widest type first, so that every tensor is aligned to its elements.
std::vector<const TensorView*> sorted(std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  order.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->dtype != b->dtype ? a->dtype > b->dtype : a->name < b->name;
  });
  return order;
}

void check_names(
    std::span<const TensorView> tensors,
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
        "; names must differ"));
  }
}

Layout lay_out(
    std::span<const TensorView> tensors,
    const Metadata& metadata,
    const std::string& target) {
  check_names(tensors, target);
  for (const auto& [key, value] : metadata) {
    check_text(key, target);
    check_text(value, target);
  }
  Layout layout{.header = {}, .order = sorted(tensors)};
  std::vector<HeaderEntry> entries;
  entries.reserve(tensors.size());
  std::uint64_t offset = 0;
  for (const auto* tensor : layout.order) {
    entries.push_back(checked_entry(*tensor, offset, target));
    offset = entries.back().end;
  }
  layout.header = format_header_json(metadata, entries);
  if (layout.header.size() > kMaxHeaderBytes) {
    throw HeaderTooLargeError(str_cat(
        "[safetensors] '",
        target,
        "': a header of ",
        layout.header.size(),
        " bytes, at most ",
        kMaxHeaderBytes,
        " allowed; split the tensors over several files"));
  }
  const std::uint64_t length = layout.header.size();
  for (std::size_t i = 0; i < layout.length.size(); ++i) {
    layout.length[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  }
  layout.total_bytes = layout.length.size() + length + offset;
  return layout;
}

} // namespace

std::vector<std::byte> serialize(
    std::span<const TensorView> tensors,
    const Metadata& metadata) {
  const Layout layout = lay_out(tensors, metadata, "memory");
  std::vector<std::byte> out;
  out.reserve(layout.total_bytes);
  const auto append = [&](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(layout.length)));
  append(std::as_bytes(std::span(layout.header)));
  for (const auto* tensor : layout.order) {
    append(tensor->data);
  }
  return out;
}

void write_file(
    const std::filesystem::path& path,
    std::span<const TensorView> tensors,
    const WriteOptions& options) {
  const Layout layout = lay_out(tensors, options.metadata, path.string());
  AtomicFile file(path);
  file.reserve(layout.total_bytes);
  const auto write = [&](std::span<const std::byte> piece) {
    file.write(piece);
    if (options.written) {
      options.written(piece);
    }
  };
  write(std::as_bytes(std::span(layout.length)));
  write(std::as_bytes(std::span(layout.header)));
  for (const auto* tensor : layout.order) {
    write(tensor->data);
  }
  file.commit(options.sync);
}

} // namespace accelerate::safetensors
