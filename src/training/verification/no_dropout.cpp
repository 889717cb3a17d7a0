// SPDX-License-Identifier: Apache-2.0
#include "training/verification/no_dropout.h"

#include <ATen/ATen.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/core/TensorOptions.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "training/device/accelerator_kinds.h"

namespace accelerate {
namespace {

at::Tensor same(const at::Tensor& input, double /*p*/, bool /*train*/) {
  return input;
}

at::Tensor& same_in_place(at::Tensor& input, double /*p*/, bool /*train*/) {
  return input;
}

std::tuple<at::Tensor, at::Tensor> same_with_mask(
    const at::Tensor& input,
    double /*p*/,
    std::optional<bool> /*train*/) {
  return {input, at::ones_like(input, input.options().dtype(at::kBool))};
}

at::Tensor attention_without_dropout(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double /*dropout_p*/,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  return at::native::scaled_dot_product_attention(
      query, key, value, mask, /*dropout_p=*/0, is_causal, scale, enable_gqa);
}

} // namespace

void turn_dropout_off() {
  // These operators are composed of others, so a kernel for the autograd key of
  // a device takes precedence over them.
  static const auto libraries = [] {
    std::vector<std::unique_ptr<torch::Library>> made;
    std::vector<c10::DeviceType> devices = {c10::kCPU};
    for (const auto* kind : accelerator_kinds()) {
      devices.push_back(kind->type);
    }
    for (const auto device : devices) {
      const auto key = c10::toRuntimePerBackendFunctionalityKey(
          c10::DispatchKey::AutogradFunctionality,
          c10::toBackendComponent(
              c10::computeDispatchKey(at::kFloat, at::kStrided, device)));
      auto library = std::make_unique<torch::Library>(
          torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      for (const char* name :
           {"dropout",
            "feature_dropout",
            "alpha_dropout",
            "feature_alpha_dropout"}) {
        library->impl(name, TORCH_FN(same));
      }
      for (const char* name :
           {"dropout_",
            "feature_dropout_",
            "alpha_dropout_",
            "feature_alpha_dropout_"}) {
        library->impl(name, TORCH_FN(same_in_place));
      }
      library->impl("native_dropout", TORCH_FN(same_with_mask));
      library->impl(
          "scaled_dot_product_attention", TORCH_FN(attention_without_dropout));
      made.push_back(std::move(library));
    }
    return made;
  }();
}

} // namespace accelerate
