// SPDX-License-Identifier: Apache-2.0
// Computes the layout of a file before writing it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "accelerate/safetensors.h"

namespace accelerate::safetensors {

/// A tensor without its bytes.
struct TensorSpec {
  std::string name = {};
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape = {};
};

struct FileLayout {
  struct Extent {
    /// Offset in the file.
    std::uint64_t begin = 0;
    std::uint64_t num_bytes = 0;
  };
  /// Everything before the data: the length of the header, and the header.
  std::string head;
  /// The position of each given tensor.
  std::vector<Extent> extents;
  /// Indices of the given tensors, in storage order.
  std::vector<std::size_t> order;
  std::uint64_t total_bytes = 0;
};

/// Throws the same errors as `write_file` for the same names, shapes and
/// metadata, with `target` as the name of the file.
FileLayout lay_out(
    std::span<const TensorSpec> tensors,
    const Metadata& metadata,
    const std::string& target);

} // namespace accelerate::safetensors
