// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "accelerate/safetensors.h"

namespace accelerate::safetensors {
namespace {

struct Row {
  std::string_view name;
  int bits;
};

// The rows are in the order of the enumerators.
constexpr std::array<Row, kNumDtypes> kTable = {{
    {"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
    {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},        {"BF16", 16},       {"I32", 32},
    {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
    {"I64", 64},    {"U64", 64},
}};

const Row& row(Dtype dtype) {
  return kTable.at(static_cast<std::size_t>(dtype));
}

} // namespace

std::string_view dtype_name(Dtype dtype) {
  return row(dtype).name;
}

int dtype_bits(Dtype dtype) {
  return row(dtype).bits;
}

std::optional<Dtype> try_parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].name == name) {
      return static_cast<Dtype>(i);
    }
  }
  return std::nullopt;
}

std::int64_t TensorView::num_elements() const {
  std::int64_t count = 1;
  for (const auto dim : shape) {
    count *= dim;
  }
  return count;
}

} // namespace accelerate::safetensors
