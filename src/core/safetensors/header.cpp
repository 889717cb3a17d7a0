// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/header.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/base/str.h"
#include "core/base/utf8.h"
#include "core/safetensors/shown.h"

namespace accelerate::safetensors {
namespace {

constexpr std::size_t kLengthBytes = 8;

// Steps 1 to 4 of the format's checks: the header as text.
std::string_view header_text(
    std::span<const std::byte> bytes,
    const std::string& source) {
  if (bytes.size() < kLengthBytes) {
    throw HeaderTooSmallError(str_cat(
        "[safetensors] '",
        source,
        "' has ",
        bytes.size(),
        " bytes, but needs at least 8; download or write the file again"));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    throw HeaderTooLargeError(str_cat(
        "[safetensors] the header of '",
        source,
        "' claims ",
        length,
        " bytes, but at most ",
        kMaxHeaderBytes,
        " are allowed; pass a safetensors file"));
  }
  if (length > bytes.size() - kLengthBytes) {
    throw InvalidHeaderLengthError(str_cat(
        "[safetensors] the header of '",
        source,
        "' claims ",
        length,
        " bytes, but only ",
        bytes.size() - kLengthBytes,
        " follow; download or write the file again"));
  }
  const std::string_view text(
      reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  if (const auto at = find_invalid_utf8(text)) {
    throw InvalidUtf8Error(str_cat(
        "[safetensors] the header of '",
        source,
        "' is not valid UTF-8 at byte ",
        *at,
        "; pass a safetensors file"));
  }
  return text;
}

// Checks in the order of the Rust library: offsets first, then their size.
void check_entry(
    const HeaderEntry& entry,
    std::uint64_t expected_begin,
    const std::string& source) {
  const auto where = [&] { return where_tensor(source, entry.name); };
  if (entry.begin != expected_begin || entry.end < entry.begin) {
    throw InvalidOffsetError(str_cat(
        where(),
        ": data_offsets [",
        entry.begin,
        ", ",
        entry.end,
        "], expected to begin at ",
        expected_begin,
        " without overlaps or gaps; write the file again"));
  }
  if (std::any_of(entry.shape.begin(), entry.shape.end(), [](auto dim) {
        return dim > std::numeric_limits<std::int64_t>::max();
      })) {
    throw ShapeOverflowError(
        str_cat(where(), ": a dimension above 2^63 - 1; write the file again"));
  }
  const std::uint64_t wanted = checked_num_bytes(entry, source);
  if (entry.end - entry.begin != wanted) {
    throw SizeMismatchError(str_cat(
        where(),
        ": ",
        entry.end - entry.begin,
        " bytes of data, but its shape and dtype ",
        dtype_name(entry.dtype),
        " need ",
        wanted,
        "; write the file again"));
  }
}

} // namespace

std::string where_tensor(const std::string& source, const std::string& name) {
  return str_cat("[safetensors] '", source, "', tensor ", shown(name));
}

std::uint64_t checked_num_bytes(
    const HeaderEntry& entry,
    const std::string& source) {
  const auto where = [&] { return where_tensor(source, entry.name); };
  auto bits = static_cast<std::uint64_t>(1);
  bool overflows = false;
  for (const auto dim : entry.shape) {
    overflows |= __builtin_mul_overflow(bits, dim, &bits);
  }
  overflows |= __builtin_mul_overflow(
      bits, static_cast<std::uint64_t>(dtype_bits(entry.dtype)), &bits);
  if (overflows) {
    throw ShapeOverflowError(str_cat(
        where(), ": a shape of more than 2^64 bits; write the file again"));
  }
  if (bits % 8 != 0) {
    throw MisalignedTensorError(str_cat(
        where(),
        ": ",
        bits,
        " bits of ",
        dtype_name(entry.dtype),
        " do not fill whole bytes; pad the last dimension"));
  }
  return bits / 8;
}

Contents parse(std::span<const std::byte> bytes, const std::string& source) {
  const std::string_view text = header_text(bytes, source);
  HeaderJson header = parse_header_json(text, source);
  const auto data = bytes.subspan(kLengthBytes + text.size());

  // The header may name the tensors in any order.
  auto& entries = header.entries;
  std::stable_sort(
      entries.begin(), entries.end(), [](const auto& a, const auto& b) {
        return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
      });
  std::uint64_t covered = 0;
  for (const auto& entry : entries) {
    check_entry(entry, covered, source);
    covered = entry.end;
  }
  if (covered != data.size()) {
    throw IncompleteBufferError(str_cat(
        "[safetensors] '",
        source,
        "' has ",
        data.size(),
        " bytes of data, but its tensors take ",
        covered,
        "; download or write the file again"));
  }

  Contents contents{.metadata = std::move(header.metadata), .tensors = {}};
  contents.tensors.reserve(entries.size());
  for (auto& entry : entries) {
    contents.tensors.push_back(
        {.name = std::move(entry.name),
         .dtype = entry.dtype,
         .shape = {entry.shape.begin(), entry.shape.end()},
         .data = data.subspan(entry.begin, entry.end - entry.begin)});
  }
  return contents;
}

} // namespace accelerate::safetensors
