// SPDX-License-Identifier: Apache-2.0
// Cases for both the CPU and GPUs.
#pragma once

#include <vector>

#include "kernels/add_norm_cases.h"

namespace accelerate::testing {

/// Inputs twice: as they are, and in double.
struct Twins {
  std::vector<at::Tensor> own;
  std::vector<at::Tensor> exact;

  void add(const at::Tensor& value) {
    own.push_back(value.detach().requires_grad_(true));
    exact.push_back(value.detach().to(at::kDouble).requires_grad_(true));
  }
  /// Compares results and, after a backward of the same gradients, inputs'.
  void expect_alike(
      const std::vector<at::Tensor>& results,
      const std::vector<at::Tensor>& wanted,
      double unit,
      const char* what) {
    std::vector<at::Tensor> gradients, exact_gradients;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].scalar_type(), own[0].scalar_type()) << what;
      expect_near(results[i], wanted[i], unit, what);
      gradients.push_back(torch::randn_like(results[i]));
      exact_gradients.push_back(gradients[i].to(at::kDouble));
    }
    torch::autograd::backward(results, gradients);
    torch::autograd::backward(wanted, exact_gradients);
    for (size_t i = 0; i < own.size(); ++i) {
      expect_near(own[i].grad(), exact[i].grad(), unit, what);
    }
  }
};

/// Rows x channels: x / root of the mean square, with a branch and without.
inline void expect_rms_norm(
    const std::vector<int64_t>& shape,
    at::ScalarType type,
    c10::DeviceType device,
    double unit) {
  const auto options = torch::TensorOptions(device).dtype(type);
  const auto by_hand = [](const at::Tensor& x, const at::Tensor& weight) {
    return x / (x * x).mean(-1, true).add(1e-5).sqrt() * weight;
  };
  for (const bool has_branch : {true, false}) {
    Twins twins;
    twins.add(torch::randn(shape, options));
    twins.add(torch::randn({shape.back()}, options));
    auto& [own, exact] = twins;
    if (!has_branch) {
      const auto normed = kernels::rms_norm(own[0], own[1], 1e-5);
      twins.expect_alike({normed}, {by_hand(exact[0], exact[1])}, unit, "norm");
      continue;
    }
    twins.add(torch::randn(shape, options));
    const auto [sum, normed] =
        kernels::add_rms_norm(own[0], own[2], own[1], 1e-5);
    const auto exact_sum = exact[0] + exact[2];
    twins.expect_alike(
        {sum, normed},
        {exact_sum, by_hand(exact_sum, exact[1])},
        unit,
        "sum and norm");
  }
}

/// By complex numbers: (x_d + i x_(d + D / 2)) e^(i angle).
inline void expect_rotation(
    const std::vector<int64_t>& shape_BTHD,
    int64_t num_tables,
    at::ScalarType type,
    c10::DeviceType device,
    double unit) {
  Twins twins;
  twins.add(torch::randn(shape_BTHD, torch::TensorOptions(device).dtype(type)));
  const auto angles = torch::randn(
      {num_tables, shape_BTHD[1], shape_BTHD[3] / 2},
      torch::TensorOptions(device).dtype(at::kFloat));
  const auto got = kernels::rotate(twins.own[0], angles.cos(), angles.sin());
  const auto halves = twins.exact[0].chunk(2, -1);
  const auto turn =
      at::polar(at::ones_like(angles, at::kDouble), angles.to(at::kDouble));
  const auto turned = at::complex(halves[0], halves[1]) * turn.unsqueeze(2);
  twins.expect_alike(
      {got},
      {at::cat({at::real(turned), at::imag(turned)}, -1)},
      unit,
      "rotation");
}

inline void expect_swiglu(
    const std::vector<int64_t>& shape,
    at::ScalarType type,
    c10::DeviceType device,
    double unit) {
  Twins twins;
  const auto options = torch::TensorOptions(device).dtype(type);
  twins.add(torch::randn(shape, options) * 3);
  twins.add(torch::randn(shape, options));
  const auto& [own, exact] = twins;
  const auto got = kernels::swiglu(own[0], own[1]);
  twins.expect_alike(
      {got}, {exact[0] / (1 + (-exact[0]).exp()) * exact[1]}, unit, "swiglu");
}

} // namespace accelerate::testing
