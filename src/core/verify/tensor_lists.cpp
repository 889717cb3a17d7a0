// SPDX-License-Identifier: Apache-2.0
#include "core/verify/tensor_lists.h"

#include <algorithm>
#include <cmath>

namespace accelerate::verify {

const TensorRecord* find(const Tensors& tensors, const std::string& name) {
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
        return tensor.name == name;
      });
  return found == tensors.end() ? nullptr : &*found;
}

double Scale::floor_of(const TensorRecord& tensor) const {
  constexpr double kPart = 0.1;
  return num_elements == 0
             ? 0
             : kPart * std::sqrt(
                           squares * static_cast<double>(tensor.num_elements) /
                           static_cast<double>(num_elements));
}

Scale scale_of(const Tensors& tensors) {
  Scale scale;
  for (const auto& tensor : tensors) {
    scale.squares += tensor.sketch.squares;
    scale.num_elements += tensor.num_elements;
  }
  return scale;
}

void add_rank(const Tensors& tensors, Tensors& whole) {
  for (const auto& tensor : tensors) {
    const auto known =
        std::find_if(whole.begin(), whole.end(), [&](const auto& other) {
          return other.name == tensor.name;
        });
    if (known == whole.end()) {
      whole.push_back(tensor);
    } else if (tensor.is_divided) {
      known->sketch += tensor.sketch;
    }
  }
}

double factor_between(const Tensors& a, const Tensors& b) {
  double product = 0;
  double squares = 0;
  for (const auto& tensor : b) {
    if (const auto* other = find(a, tensor.name)) {
      for (size_t i = 0; i < Sketch::kNumSums; ++i) {
        product += other->sketch.sums[i] * tensor.sketch.sums[i];
        squares += tensor.sketch.sums[i] * tensor.sketch.sums[i];
      }
    }
  }
  return squares > 0 ? product / squares : 0;
}

bool are_multiples(
    const Tensors& a,
    const Tensors& b,
    double factor,
    double tolerance) {
  const Scale scale = scale_of(a);
  return std::all_of(a.begin(), a.end(), [&](const auto& tensor) {
    const auto* other = find(b, tensor.name);
    if (other == nullptr) {
      return false;
    }
    Sketch scaled = other->sketch;
    for (double& sum : scaled.sums) {
      sum *= factor;
    }
    const double size =
        std::max(std::sqrt(tensor.sketch.squares), scale.floor_of(tensor));
    return distance(tensor.sketch, scaled) <= tolerance * size;
  });
}

} // namespace accelerate::verify
