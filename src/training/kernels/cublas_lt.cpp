// SPDX-License-Identifier: Apache-2.0
// A product with bias and gelu computed by cuBLASLt. cuBLASLt's epilogues for
// gradients are not used: they are separate kernels after the product, and
// slower than ours.
//
// Uses the library that torch has loaded, because only torch's libraries can
// find the one inside a wheel.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/kernels/linear.h"

namespace accelerate::kernels {
namespace {

/// The size of the workspace that torch uses for its own products on such GPUs.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

void check_status(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw SystemError(str_cat(
        "[kernels] cuBLASLt: ", what, " failed with status ", int{status}));
  }
}

/// The functions of the library: all of them, or none.
class LtLibrary {
 public:
  static const LtLibrary& get() {
    static const LtLibrary library;
    return library;
  }
  bool is_there() const { return is_there_; }

  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&::cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) destroy_product = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) create_matrix = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_matrix = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;

 private:
  LtLibrary() {
    const auto name = str_cat("libcublasLt.so.", CUBLAS_VER_MAJOR);
    library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
    is_there_ = library_ != nullptr && load(create, "cublasLtCreate") &&
                load(matmul, "cublasLtMatmul") &&
                load(choose, "cublasLtMatmulAlgoGetHeuristic") &&
                load(create_product, "cublasLtMatmulDescCreate") &&
                load(destroy_product, "cublasLtMatmulDescDestroy") &&
                load(set_product, "cublasLtMatmulDescSetAttribute") &&
                load(create_matrix, "cublasLtMatrixLayoutCreate") &&
                load(destroy_matrix, "cublasLtMatrixLayoutDestroy") &&
                load(create_preference, "cublasLtMatmulPreferenceCreate") &&
                load(destroy_preference, "cublasLtMatmulPreferenceDestroy") &&
                load(set_preference, "cublasLtMatmulPreferenceSetAttribute");
  }
  template <class Function>
  bool load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    return function != nullptr;
  }

  void* library_ = nullptr;
  bool is_there_ = false;
};

template <class Opaque>
using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;

using Product = Owned<cublasLtMatmulDescOpaque_t>;
using Matrix = Owned<cublasLtMatrixLayoutOpaque_t>;

template <class Value>
void set_attribute(
    const Product& product,
    cublasLtMatmulDescAttributes_t attribute,
    const Value& value) {
  check_status(
      LtLibrary::get().set_product(
          product.get(), attribute, &value, sizeof value),
      "setting a product attribute");
}

std::optional<cudaDataType_t> lt_type(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return CUDA_R_16F;
    case at::kBFloat16:
      return CUDA_R_16BF;
    default:
      return std::nullopt;
  }
}

/// cuBLASLt is column-major, so a dense row-major matrix is the transpose of
/// its argument.
Matrix make_matrix(cudaDataType_t type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t matrix = nullptr;
  check_status(
      LtLibrary::get().create_matrix(
          &matrix,
          type,
          static_cast<uint64_t>(rows),
          static_cast<uint64_t>(columns),
          rows),
      "creating a matrix layout");
  return {matrix, LtLibrary::get().destroy_matrix};
}

Product make_gelu_product(
    cublasOperation_t weight_operation,
    const at::Tensor& bias_O,
    const at::Tensor& inner_MO) {
  cublasLtMatmulDesc_t raw = nullptr;
  check_status(
      LtLibrary::get().create_product(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "a product");
  Product product(raw, LtLibrary::get().destroy_product);
  set_attribute(product, CUBLASLT_MATMUL_DESC_TRANSA, weight_operation);
  set_attribute(
      product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  const void* const bias = bias_O.const_data_ptr();
  set_attribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  void* const inner = inner_MO.mutable_data_ptr();
  set_attribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, inner);
  const int64_t stride = inner_MO.size(1);
  set_attribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
  return product;
}

/// The key of cached algorithms, because choosing one takes the host longer
/// than the launch.
using LtKey = std::array<int64_t, 6>;

class LtChoices {
 public:
  static LtChoices& get() {
    static LtChoices choices;
    return choices;
  }

  cublasLtHandle_t handle(c10::DeviceIndex device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& handle = handles_[device];
    if (handle == nullptr) {
      check_status(LtLibrary::get().create(&handle), "initialization");
    }
    return handle;
  }

  /// Null if there is no kernel. This result is also cached.
  template <class Choose>
  std::optional<cublasLtMatmulAlgo_t> find(const LtKey& key, Choose&& choose) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = choices_.find(key);
    return found != choices_.end()
               ? found->second
               : choices_.emplace(key, choose()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, cublasLtHandle_t> handles_;
  std::map<LtKey, std::optional<cublasLtMatmulAlgo_t>> choices_;
};

std::optional<cublasLtMatmulAlgo_t> choose_algorithm(
    cublasLtHandle_t handle,
    const Product& product,
    const Matrix& first,
    const Matrix& second,
    const Matrix& result) {
  const auto& library = LtLibrary::get();
  cublasLtMatmulPreference_t raw = nullptr;
  check_status(library.create_preference(&raw), "a preference");
  const Owned<cublasLtMatmulPreferenceOpaque_t> preference(
      raw, library.destroy_preference);
  check_status(
      library.set_preference(
          preference.get(),
          CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
          &kWorkspaceBytes,
          sizeof kWorkspaceBytes),
      "setting the workspace size");
  cublasLtMatmulHeuristicResult_t best = {};
  int num_found = 0;
  const auto status = library.choose(
      handle,
      product.get(),
      first.get(),
      second.get(),
      result.get(),
      result.get(),
      preference.get(),
      1,
      &best,
      &num_found);
  return status == CUBLAS_STATUS_SUCCESS && num_found > 0 &&
                 best.state == CUBLAS_STATUS_SUCCESS
             ? std::optional(best.algo)
             : std::nullopt;
}

/// With this alignment, all rows are aligned to 16 bytes.
bool is_lt_aligned(const at::Tensor& tensor) {
  constexpr int64_t kNumbers = 8;
  constexpr size_t kBytes = 16;
  return tensor.size(tensor.is_contiguous() ? -1 : 0) % kNumbers == 0 &&
         reinterpret_cast<size_t>(tensor.const_data_ptr()) % kBytes == 0;
}

/// Returns false and does nothing if cuBLASLt is missing, or has no kernel for
/// this dtype, these sizes or this alignment.
bool lt_linear_gelu(
    const at::Tensor& x_MI,
    const at::Tensor& weight_OI,
    const at::Tensor& bias_O,
    const at::Tensor& inner_MO,
    const at::Tensor& outer_MO) {
  const auto& library = LtLibrary::get();
  const auto type = lt_type(x_MI.scalar_type());
  const bool is_transposed = !weight_OI.is_contiguous();
  if (!library.is_there() || !type || x_MI.numel() == 0 ||
      outer_MO.numel() == 0 || !x_MI.is_contiguous() ||
      !bias_O.is_contiguous() ||
      (is_transposed && !weight_OI.t().is_contiguous()) ||
      !is_lt_aligned(x_MI) || !is_lt_aligned(weight_OI) ||
      !is_lt_aligned(bias_O) || !is_lt_aligned(outer_MO)) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(x_MI.device());
  const auto device = x_MI.device().index();
  const int64_t M = x_MI.size(0);
  const int64_t I = x_MI.size(1);
  const int64_t O = weight_OI.size(0);
  auto& choices = LtChoices::get();
  const auto handle = choices.handle(device);
  const auto product = make_gelu_product(
      is_transposed ? CUBLAS_OP_N : CUBLAS_OP_T, bias_O, inner_MO);
  const auto weight =
      is_transposed ? make_matrix(*type, O, I) : make_matrix(*type, I, O);
  const auto x = make_matrix(*type, I, M);
  const auto outer = make_matrix(*type, O, M);
  const auto algorithm = choices.find(
      {device, static_cast<int64_t>(*type), is_transposed, M, I, O},
      [&] { return choose_algorithm(handle, product, weight, x, outer); });
  if (!algorithm) {
    return false;
  }
  const auto workspace = at::empty(
      {static_cast<int64_t>(kWorkspaceBytes)}, x_MI.options().dtype(at::kByte));
  const float one = 1.0f;
  const float zero = 0.0f;
  check_status(
      library.matmul(
          handle,
          product.get(),
          &one,
          weight_OI.const_data_ptr(),
          weight.get(),
          x_MI.const_data_ptr(),
          x.get(),
          &zero,
          outer_MO.const_data_ptr(),
          outer.get(),
          outer_MO.mutable_data_ptr(),
          outer.get(),
          &*algorithm,
          workspace.mutable_data_ptr(),
          kWorkspaceBytes,
          c10::cuda::getCurrentCUDAStream(device).stream()),
      "a product");
  return true;
}

std::tuple<at::Tensor, at::Tensor> cuda_linear_gelu(
    const at::Tensor& x_MI,
    const at::Tensor& weight_OI,
    const at::Tensor& bias_O,
    bool is_tanh) {
  if (is_tanh) {
    auto outer = at::empty({x_MI.size(0), weight_OI.size(0)}, x_MI.options());
    auto inner = at::empty_like(outer);
    if (lt_linear_gelu(x_MI, weight_OI, bias_O, inner, outer)) {
      return {outer, inner};
    }
  }
  return plain_linear_gelu(x_MI, weight_OI, bias_O, is_tanh);
}

} // namespace

TORCH_LIBRARY_IMPL(accelerate, CUDA, library) {
  library.impl("_linear_gelu", cuda_linear_gelu);
}

} // namespace accelerate::kernels
