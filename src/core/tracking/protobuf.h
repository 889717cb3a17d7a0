// SPDX-License-Identifier: Apache-2.0
// Writes Protocol Buffers messages.
//
// TensorBoard's events need five kinds of fields. libprotobuf would add a
// compiler to the build, and its symbols would clash with those of torch's own
// copy.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate {

/// One message, with fields in the order of the calls. Each returns the
/// message, for chaining.
class ProtoMessage {
 public:
  ProtoMessage& integer(int field, int64_t value) {
    put_tag(field, 0);
    put_varint(static_cast<uint64_t>(value));
    return *this;
  }
  ProtoMessage& float64(int field, double value) {
    put_tag(field, 1);
    put_fixed(std::bit_cast<uint64_t>(value), 8);
    return *this;
  }
  ProtoMessage& float32(int field, float value) {
    put_tag(field, 5);
    put_fixed(std::bit_cast<uint32_t>(value), 4);
    return *this;
  }
  ProtoMessage& text(int field, std::string_view value) {
    put_tag(field, 2);
    put_varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoMessage& message(int field, const ProtoMessage& value) {
    return text(field, value.bytes_);
  }
  ProtoMessage& float64s(int field, const std::vector<double>& values) {
    put_tag(field, 2);
    put_varint(values.size() * 8);
    for (const double value : values) {
      put_fixed(std::bit_cast<uint64_t>(value), 8);
    }
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void put_tag(int field, int kind) {
    put_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(kind));
  }
  void put_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_ += static_cast<char>(value | 0x80);
    }
    bytes_ += static_cast<char>(value);
  }
  void put_fixed(uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) {
      bytes_ += static_cast<char>(value >> 8 * i);
    }
  }

  std::string bytes_;
};

} // namespace accelerate
