// SPDX-License-Identifier: Apache-2.0
// Reads the weights of a model that does not fit into memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/safetensors.h"
#include "core/base/file_reader.h"

namespace accelerate {

/// A safetensors file that may be truncated or replaced while it is open
/// (`FileReader`). Only the header is in memory. Safe to use from several
/// threads.
class ACCELERATE_INTERNAL WeightsFile {
 public:
  /// Throws the same errors as `safetensors::File`.
  explicit WeightsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return reader_.path(); }
  const safetensors::Metadata& metadata() const { return metadata_; }
  /// The names of all tensors, in the order in which the file stores their
  /// data.
  const std::vector<std::string>& names() const { return names_; }
  /// Throws `TensorNotFoundError` if the file has no tensor of this name, and
  /// the same errors as `FileReader::read`.
  at::Tensor read(const std::string& name) const;

 private:
  struct Entry {
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::string dtype_name = {};
    std::vector<std::int64_t> shape = {};
    std::uint64_t position = 0;
  };

  FileReader reader_;
  safetensors::Metadata metadata_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, Entry> entries_;
};

/// Reads a file that contains only the elements of one tensor. Throws
/// `DataError` if the file has a different size, and the same errors as
/// `FileReader`.
ACCELERATE_INTERNAL at::Tensor read_plain_tensor(
    const std::filesystem::path& path,
    std::vector<std::int64_t> shape,
    c10::ScalarType dtype);

} // namespace accelerate
