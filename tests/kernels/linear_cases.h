// SPDX-License-Identifier: Apache-2.0
// Cases for both the CPU and GPUs.
#pragma once

#include <vector>

#include "kernels/add_norm_cases.h"

namespace accelerate::testing {

struct LinearCase {
  std::vector<int64_t> rows;
  int64_t num_inputs, num_inner, num_outputs;
};

/// Values whose products stay near 1; a weight may be stored transposed.
inline at::Tensor draw_weight(
    int64_t O,
    int64_t I,
    bool is_transposed,
    at::TensorOptions options) {
  const auto values = torch::randn({O, I}, options.dtype(at::kFloat))
                          .div(std::sqrt(I))
                          .to(options);
  return is_transposed ? values.t().contiguous().t() : values;
}

/// Both operators compared with expressions in double. The gradients of the
/// weights have their memory layout.
inline void expect_linear(
    const LinearCase& c,
    at::ScalarType type,
    c10::DeviceType device,
    bool is_transposed,
    kernels::Gelu gelu,
    double unit) {
  const auto options = torch::TensorOptions(device).dtype(type);
  auto shape = c.rows;
  shape.push_back(c.num_inputs);
  std::vector<at::Tensor> own{
      torch::randn(shape, options),
      draw_weight(c.num_inner, c.num_inputs, is_transposed, options),
      torch::randn({c.num_inner}, options),
      draw_weight(c.num_outputs, c.num_inner, is_transposed, options)};
  std::vector<at::Tensor> exact;
  for (auto& tensor : own) {
    exact.push_back(tensor.to(at::kDouble).requires_grad_(true));
    tensor.requires_grad_(true);
  }
  const auto y =
      kernels::linear_gelu_linear(own[0], own[1], own[2], own[3], gelu);
  const auto z = kernels::linear(own[0], own[1], own[2]);
  const auto y_gradient = torch::randn(y.sizes(), options);
  const auto z_gradient = torch::randn(z.sizes(), options);
  const auto want_z = at::linear(exact[0], exact[1], exact[2]);
  const auto want_y = at::linear(
      at::gelu(want_z, gelu == kernels::Gelu::kTanh ? "tanh" : "none"),
      exact[3]);
  EXPECT_EQ(y.scalar_type(), type);
  expect_near(y, want_y, unit, "gelu between products");
  expect_near(z, want_z, unit, "product");
  const char* names[] = {"x", "first weight", "bias", "second weight"};
  const auto compare = [&](const char* what) {
    for (size_t i = 0; i < own.size(); ++i) {
      if (!exact[i].grad().defined()) {
        continue;
      }
      expect_near(own[i].grad(), exact[i].grad(), unit, what);
      expect_near(own[i].grad(), exact[i].grad(), unit, names[i]);
      EXPECT_EQ(own[i].grad().strides(), own[i].strides()) << names[i];
      own[i].mutable_grad().reset();
      exact[i].mutable_grad().reset();
    }
  };
  y.backward(y_gradient);
  want_y.backward(y_gradient.to(at::kDouble), /*retain_graph=*/true);
  compare("gelu between products");
  z.backward(z_gradient);
  want_z.backward(z_gradient.to(at::kDouble));
  compare("product");
}

} // namespace accelerate::testing
