// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/mesh_shape.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// One row per dimension, the outermost first: bit i of `MeshDimension`.
struct Dimension {
  std::string_view name;
  int MeshSizes::*size;
};
constexpr std::array<Dimension, 6> kDimensions = {
    {{"pipeline", &MeshSizes::pipeline},
     {"replicate", &MeshSizes::replicate},
     {"shard", &MeshSizes::shard},
     {"context", &MeshSizes::context},
     {"sequence", &MeshSizes::sequence},
     {"tensor", &MeshSizes::tensor}}};

bool has(MeshDimension dimensions, std::size_t index) {
  return (static_cast<unsigned>(dimensions) >> index & 1U) != 0;
}

} // namespace

std::string to_text(const MeshSizes& sizes) {
  std::string text;
  for (const auto& [name, size] : kDimensions) {
    const auto number = sizes.*size;
    const bool counts = size != &MeshSizes::shard || sizes.replicate != 0;
    if (number != 1 && (number != 0 || counts)) {
      text += str_cat(
          text.empty() ? "" : " x ",
          name,
          ' ',
          number == 0 ? "any" : str_cat(number));
    }
  }
  return text.empty() ? "1" : text;
}

MeshShape::MeshShape(const MeshSizes& sizes, int num_ranks) : sizes_() {
  std::int64_t product = 1;
  for (std::size_t i = 0; i < kDimensions.size(); ++i) {
    sizes_[i] = sizes.*kDimensions[i].size;
    const bool may_be_zero = has(MeshDimension::kData, i);
    if (sizes_[i] < (may_be_zero ? 0 : 1)) {
      throw ConfigError(str_cat(
          "[Mesh] The size of ",
          kDimensions[i].name,
          " is ",
          sizes_[i],
          ". Use a size of at least 1"));
    }
    // Bounded, so that no product overflows.
    product =
        std::min<std::int64_t>(product * std::max(sizes_[i], 1), 1LL << 31);
  }
  auto& replicate = sizes_[1];
  auto& shard = sizes_[2];
  const bool has_rest = replicate == 0 || shard == 0;
  if (has_rest ? num_ranks % product != 0 : num_ranks != product) {
    throw ConfigError(str_cat(
        "[Mesh] A mesh of ",
        to_text(sizes),
        has_rest ? " needs a multiple of " : " needs ",
        product,
        product == 1 ? " rank" : " ranks",
        ", but there ",
        num_ranks == 1 ? "is " : "are ",
        num_ranks,
        ". Change the sizes or the number of processes"));
  }
  const int rest = static_cast<int>(num_ranks / product);
  if (replicate == 0) {
    replicate = rest;
    shard = std::max(shard, 1);
  } else if (shard == 0) {
    shard = rest;
  }
}

MeshSizes MeshShape::sizes() const {
  MeshSizes sizes;
  for (std::size_t i = 0; i < kDimensions.size(); ++i) {
    sizes.*kDimensions[i].size = sizes_[i];
  }
  return sizes;
}

int MeshShape::size(MeshDimension dimensions) const {
  int product = 1;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    product *= has(dimensions, i) ? sizes_[i] : 1;
  }
  return product;
}

int MeshShape::num_ranks() const {
  return size(static_cast<MeshDimension>((1U << kDimensions.size()) - 1));
}

int MeshShape::coordinate(int rank, MeshDimension dimensions) const {
  int coordinate = 0;
  int weight = 1;
  for (std::size_t i = sizes_.size(); i-- > 0; rank /= sizes_[i]) {
    if (has(dimensions, i)) {
      coordinate += rank % sizes_[i] * weight;
      weight *= sizes_[i];
    }
  }
  return coordinate;
}

std::vector<int> MeshShape::ranks(int rank, MeshDimension dimensions) const {
  std::vector<int> ranks = {0};
  int stride = 1;
  for (std::size_t i = sizes_.size(); i-- > 0; stride *= sizes_[i]) {
    const int own = rank / stride % sizes_[i];
    const bool is_free = has(dimensions, i);
    std::vector<int> wider;
    for (int at = is_free ? 0 : own; at <= (is_free ? sizes_[i] - 1 : own);
         ++at) {
      for (const int inner : ranks) {
        wider.push_back(at * stride + inner);
      }
    }
    ranks = std::move(wider);
  }
  return ranks;
}

} // namespace accelerate
