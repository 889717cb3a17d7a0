// SPDX-License-Identifier: Apache-2.0
// Cases for both the CPU and GPUs.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

#include "training/kernels/operator.h"
#include "training/kernels/total_norm.h"

namespace accelerate::testing {

inline at::Tensor total_norm(
    const std::vector<at::Tensor>& tensors,
    double norm_type) {
  return kernels::typed_operator<decltype(kernels::plain_total_norm)>(
             "accelerate::_total_norm")
      .call(tensors, norm_type);
}

/// More tensors than a launch takes: of sizes that are not multiples of a pack,
/// some after an odd number of elements, one larger than a block's part, one
/// empty, one transposed, one with gaps.
inline std::vector<at::Tensor> draw_gradients(
    const std::vector<at::ScalarType>& types,
    c10::DeviceType device) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < 300; ++i) {
    const auto count = static_cast<int64_t>(i);
    const int64_t size = i == 5 ? 0 : i == 9 ? 200003 : 1 + 7 * count;
    const auto memory = torch::randn({size + count % 3}, torch::kCPU)
                            .to(device, types[i % types.size()]);
    tensors.push_back(memory.narrow(0, count % 3, size));
  }
  tensors[20] = torch::randn({6, 9}).to(device, types[0]).t();
  tensors[21] = torch::randn({6, 9}).to(device, types[0]).slice(1, 0, 9, 2);
  return tensors;
}

/// Compared with the norm in double precision over all elements in one vector.
inline void expect_total_norm(
    const std::vector<at::Tensor>& tensors,
    double norm_type) {
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors) {
    flat.push_back(tensor.to(at::kCPU, at::kDouble).reshape({-1}));
  }
  const double expected =
      torch::linalg_vector_norm(torch::cat(flat), norm_type).item<double>();
  const auto norm = total_norm(tensors, norm_type);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_EQ(norm.device(), tensors[0].device());
  EXPECT_EQ(norm.dim(), 0);
  // Sums of float32 round; a norm in bf16 may be off by 4e-3.
  EXPECT_NEAR(norm.item<double>(), expected, 1e-4 * expected) << norm_type;
}

inline const std::vector<std::vector<at::ScalarType>> kTypesOfGradients = {
    {at::kFloat},
    {at::kHalf},
    {at::kBFloat16},
    {at::kFloat, at::kBFloat16, at::kHalf}};

inline void expect_total_norms(c10::DeviceType device) {
  torch::manual_seed(6);
  for (const auto& types : kTypesOfGradients) {
    const auto tensors = draw_gradients(types, device);
    for (const double type : {1.0, 2.0, 3.0}) {
      expect_total_norm(tensors, type);
    }
    expect_total_norm({tensors[9]}, 2);
    // Torch has no largest number of an empty tensor.
    expect_total_norm(
        {tensors.begin() + 6, tensors.end()},
        std::numeric_limits<double>::infinity());
    EXPECT_EQ(total_norm({tensors[5]}, 2).item<float>(), 0);
    // Deterministic.
    EXPECT_TRUE(torch::equal(total_norm(tensors, 2), total_norm(tensors, 2)));
    tensors[7].flatten()[3].fill_(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(total_norm(tensors, 2).isnan().item<bool>());
  }
}

} // namespace accelerate::testing
