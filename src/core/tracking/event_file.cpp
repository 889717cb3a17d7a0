// SPDX-License-Identifier: Apache-2.0
#include "core/tracking/event_file.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>

#include "core/base/str.h"

namespace accelerate {
namespace {

/// CRC-32C by Castagnoli's polynomial, bit reversed.
constexpr uint32_t kCastagnoli = 0x82f63b78;

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = rest >> 1 ^ (rest & 1 ? kCastagnoli : 0);
    }
    table[byte] = rest;
  }
  return table;
}

/// Masked, because the CRC of data that contains CRCs is weak.
uint32_t masked_crc(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) {
    crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ crc >> 8;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

void put_little_endian(std::string& bytes, uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) {
    bytes += static_cast<char>(value >> 8 * i);
  }
}

std::filesystem::path event_path(const std::filesystem::path& folder) {
  static std::atomic<int> number{0};
  return folder / str_cat(
                      "events.out.tfevents.",
                      static_cast<int64_t>(wall_seconds()),
                      '.',
                      this_host(),
                      '.',
                      getpid(),
                      '.',
                      number++);
}

} // namespace

std::string record_of(std::string_view data) {
  std::string record;
  record.reserve(data.size() + 16);
  put_little_endian(record, data.size(), 8);
  put_little_endian(record, masked_crc(record), 4);
  record += data;
  put_little_endian(record, masked_crc(data), 4);
  return record;
}

EventFile::EventFile(const std::filesystem::path& folder)
    : file_(event_path(folder), /*cut_line=*/false) {
  write(ProtoMessage().text(event_field::kFileVersion, "brain.Event:2"));
}

void EventFile::write(ProtoMessage event) {
  event.float64(event_field::kTime, wall_seconds());
  file_.write(record_of(event.bytes()));
}

} // namespace accelerate
