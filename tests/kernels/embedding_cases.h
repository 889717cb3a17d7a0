// SPDX-License-Identifier: Apache-2.0
// Cases for both the CPU and GPUs.
#pragma once

#include <accelerate/training/kernels.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "kernels/add_norm_cases.h"

namespace accelerate::testing {

/// Compared with `at::embedding` in double: rows used by none, one, several and
/// most of the ids, with padding and without; bit-identical when repeated.
inline void expect_embedding(
    int64_t num_rows,
    int64_t num_channels,
    std::vector<int64_t> shape,
    at::ScalarType type,
    at::ScalarType id_type,
    c10::DeviceType device,
    double unit) {
  const auto options = torch::TensorOptions(device).dtype(type);
  const auto weight =
      torch::randn({num_rows, num_channels}, options).requires_grad_(true);
  const auto exact = weight.detach().to(at::kDouble).requires_grad_(true);
  auto ids = torch::randint(
      0, num_rows, shape, torch::TensorOptions(device).dtype(id_type));
  ids = at::where(torch::rand(shape, device).lt(0.3), ids, ids % 3);
  auto sizes = shape;
  sizes.push_back(num_channels);
  const auto gradient = torch::randn(sizes, options);
  for (const std::optional<int64_t> padding :
       {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
    const auto rows = kernels::embedding(weight, ids, padding);
    EXPECT_TRUE(
        torch::equal(rows, at::embedding(weight, ids, padding.value_or(-1))));
    const auto got = torch::autograd::grad({rows}, {weight}, {gradient})[0];
    const auto want = torch::autograd::grad(
        {at::embedding(exact, ids, padding.value_or(-1))},
        {exact},
        {gradient.to(at::kDouble)})[0];
    EXPECT_EQ(got.scalar_type(), type);
    expect_near(got, want, unit, "embedding");
    if (padding) {
      EXPECT_EQ(got[*padding].abs().max().item<double>(), 0.0);
    }
    const auto again = torch::autograd::grad(
        {kernels::embedding(weight, ids, padding)}, {weight}, {gradient})[0];
    EXPECT_TRUE(torch::equal(got, again));
  }
}

} // namespace accelerate::testing
