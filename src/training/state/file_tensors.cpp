// SPDX-License-Identifier: Apache-2.0
#include "training/state/file_tensors.h"

#include <ATen/ATen.h>

#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

using safetensors::Dtype;

struct DtypePair {
  c10::ScalarType torch;
  Dtype file;
};
// dtypes that pack several elements into a byte are not supported, because
// their shapes differ in files.
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

std::optional<Dtype> file_dtype(c10::ScalarType dtype) {
  for (const auto& pair : kDtypePairs) {
    if (pair.torch == dtype) {
      return pair.file;
    }
  }
  return std::nullopt;
}

} // namespace

std::optional<c10::ScalarType> torch_dtype(Dtype dtype) {
  for (const auto& pair : kDtypePairs) {
    if (pair.file == dtype) {
      return pair.torch;
    }
  }
  return std::nullopt;
}

bool fits_into_files(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_meta() &&
         file_dtype(tensor.scalar_type()).has_value();
}

FileTensors::FileTensors(std::string where, std::string instead)
    : where_(std::move(where)), instead_(std::move(instead)) {}

void FileTensors::add(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw UsageError(
        str_cat(where_, " Tensor '", name, "' is undefined. ", instead_));
  }
  if (!fits_into_files(tensor)) {
    throw UsageError(str_cat(
        where_,
        " Tensor '",
        name,
        "' has dtype ",
        tensor.scalar_type(),
        " and layout ",
        tensor.layout(),
        " on device ",
        tensor.device(),
        ", which safetensors files cannot store. ",
        instead_));
  }
  // Conjugate and negative views only mark their elements with a flag, so
  // resolve them.
  held_.push_back(
      tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous());
  const auto& held = held_.back();
  views_.push_back(
      {.name = name,
       .dtype = *file_dtype(tensor.scalar_type()),
       .shape = held.sizes().vec(),
       .data = {
           static_cast<const std::byte*>(held.const_data_ptr()),
           held.nbytes()}});
}

at::Tensor tensor_in(
    const safetensors::File& file,
    const safetensors::TensorView& view) {
  const auto dtype = torch_dtype(view.dtype);
  if (!dtype) {
    throw DataError(str_cat(
        "[safetensors] '",
        view.name,
        "' in '",
        file.path().string(),
        "' has the dtype ",
        safetensors::dtype_name(view.dtype),
        ", which torch does not support. Write it with another dtype"));
  }
  auto* data = const_cast<std::byte*>(view.data.data());
  const auto options = at::TensorOptions(at::kCPU).dtype(*dtype);
  if (reinterpret_cast<std::uintptr_t>(data) % c10::elementSize(*dtype) != 0) {
    auto copy = at::empty(view.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, view.data.size());
    return copy;
  }
  return at::from_blob(
      data, view.shape, [file](void*) {}, options);
}

} // namespace accelerate
