// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/stored_zip.h"

#include <cstdint>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::safetensors {
namespace {

constexpr std::size_t kEndSize = 22;
constexpr std::size_t kEntrySize = 46;
constexpr std::size_t kLocalSize = 30;
constexpr std::uint32_t kEndMark = 0x06054b50;
constexpr std::uint32_t kEntryMark = 0x02014b50;
constexpr std::uint32_t kLocalMark = 0x04034b50;

class ZipBytes {
 public:
  ZipBytes(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  std::span<const std::byte> at(std::size_t begin, std::size_t size) const {
    if (begin > bytes_.size() || size > bytes_.size() - begin) {
      refuse();
    }
    return bytes_.subspan(begin, size);
  }

  std::uint32_t number(std::size_t begin, std::size_t size) const {
    std::uint32_t value = 0;
    std::size_t shift = 0;
    for (const std::byte byte : at(begin, size)) {
      value |= std::to_integer<std::uint32_t>(byte) << shift;
      shift += 8;
    }
    return value;
  }

  void expect(bool is_so) const {
    if (!is_so) {
      refuse();
    }
  }

  [[noreturn]] void refuse() const {
    throw DataError(str_cat(
        where_,
        " is not an uncompressed torch.save archive of at most 4 GiB. Save it "
        "again"));
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& where_;
};

} // namespace

StoredZip::StoredZip(std::span<const std::byte> bytes, std::string where)
    : where_(std::move(where)) {
  const ZipBytes zip(bytes, where_);
  zip.expect(bytes.size() >= kEndSize);
  // torch writes no comment after the end record.
  const std::size_t end = bytes.size() - kEndSize;
  zip.expect(zip.number(end, 4) == kEndMark);
  const std::uint32_t count = zip.number(end + 10, 2);
  std::size_t at = zip.number(end + 16, 4);
  for (std::uint32_t i = 0; i < count; ++i) {
    zip.expect(zip.number(at, 4) == kEntryMark);
    const std::uint32_t method = zip.number(at + 10, 2);
    const std::uint32_t size = zip.number(at + 24, 4);
    const std::uint32_t name_size = zip.number(at + 28, 2);
    const std::size_t local = zip.number(at + 42, 4);
    const auto raw = zip.at(at + kEntrySize, name_size);
    const std::string name(
        reinterpret_cast<const char*>(raw.data()), raw.size());
    zip.expect(method == 0 && size == zip.number(at + 20, 4));
    zip.expect(zip.number(local, 4) == kLocalMark);
    const std::size_t begin = local + kLocalSize + zip.number(local + 26, 2) +
                              zip.number(local + 28, 2);
    entries_[name.substr(name.find('/') + 1)] = zip.at(begin, size);
    at += kEntrySize + name_size + zip.number(at + 30, 2) +
          zip.number(at + 32, 2);
  }
}

std::span<const std::byte> StoredZip::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw DataError(str_cat(
        where_,
        " is not a torch.save archive: it has no ",
        name,
        ". Save it again"));
  }
  return found->second;
}

} // namespace accelerate::safetensors
