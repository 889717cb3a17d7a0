// SPDX-License-Identifier: Apache-2.0
#include "state/tensor_dtype.h"

namespace accelerate {
namespace {

using safetensors::Dtype;

struct DtypePair {
  c10::ScalarType torch;
  Dtype file;
};
// Types that are packed into bytes have another shape there: none of ours does.
constexpr DtypePair kDtypePairs[] = {
    {c10::ScalarType::Bool, Dtype::kBool},
    {c10::ScalarType::Byte, Dtype::kU8},
    {c10::ScalarType::Char, Dtype::kI8},
    {c10::ScalarType::Short, Dtype::kI16},
    {c10::ScalarType::UInt16, Dtype::kU16},
    {c10::ScalarType::Int, Dtype::kI32},
    {c10::ScalarType::UInt32, Dtype::kU32},
    {c10::ScalarType::Long, Dtype::kI64},
    {c10::ScalarType::UInt64, Dtype::kU64},
    {c10::ScalarType::Half, Dtype::kF16},
    {c10::ScalarType::BFloat16, Dtype::kBF16},
    {c10::ScalarType::Float, Dtype::kF32},
    {c10::ScalarType::Double, Dtype::kF64},
    {c10::ScalarType::ComplexFloat, Dtype::kC64},
    {c10::ScalarType::Float8_e5m2, Dtype::kF8E5M2},
    {c10::ScalarType::Float8_e4m3fn, Dtype::kF8E4M3},
    {c10::ScalarType::Float8_e8m0fnu, Dtype::kF8E8M0},
    {c10::ScalarType::Float8_e5m2fnuz, Dtype::kF8E5M2Fnuz},
    {c10::ScalarType::Float8_e4m3fnuz, Dtype::kF8E4M3Fnuz},
};

} // namespace

std::optional<Dtype> file_dtype(c10::ScalarType dtype) {
  for (const auto& pair : kDtypePairs) {
    if (pair.torch == dtype) {
      return pair.file;
    }
  }
  return std::nullopt;
}

std::optional<c10::ScalarType> torch_dtype(Dtype dtype) {
  for (const auto& pair : kDtypePairs) {
    if (pair.file == dtype) {
      return pair.torch;
    }
  }
  return std::nullopt;
}

} // namespace accelerate
