// SPDX-License-Identifier: Apache-2.0
// Writes files piece by piece, so that not all tensors must be in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "accelerate/files/safetensors_index.h"
#include "core/base/atomic_file.h"
#include "core/base/internal.h"
#include "core/safetensors/layout.h"

namespace accelerate::safetensors {

/// Writes one file atomically, with the same bytes as `write_file`. Throws the
/// same errors as `write_file`.
class ACCELERATE_INTERNAL StreamedFile {
 public:
  StreamedFile(
      const std::filesystem::path& path,
      std::span<const TensorSpec> tensors,
      const Metadata& metadata);
  StreamedFile(const StreamedFile&) = delete;
  StreamedFile& operator=(const StreamedFile&) = delete;

  /// Writes bytes of a tensor from `offset` on. Bytes may be written in any
  /// order, but only once each. The order of the file is the fastest. Throws
  /// `SizeMismatchError` if they exceed the tensor.
  void write(
      const std::string& name,
      std::uint64_t offset,
      std::span<const std::byte> bytes);
  /// Renames the file to its final name. Throws `SizeMismatchError` if bytes
  /// are missing.
  void commit(bool sync = true);

 private:
  struct Pending {
    FileLayout::Extent extent;
    std::uint64_t num_missing = 0;
  };
  std::filesystem::path path_;
  std::map<std::string, Pending> pending_;
  AtomicFile file_;
};

/// Writes a model into one or more files, as `save_sharded` does.
class ACCELERATE_INTERNAL StreamedModel {
 public:
  StreamedModel(
      const std::filesystem::path& folder,
      std::span<const TensorSpec> tensors,
      const SaveOptions& options);

  /// Like `StreamedFile::write`.
  void write(
      const std::string& name,
      std::uint64_t offset,
      std::span<const std::byte> bytes);
  /// Renames the files, then the index, to their final names, and removes files
  /// of an earlier save. Returns their names, the index last.
  std::vector<std::string> commit();

 private:
  std::filesystem::path folder_;
  bool sync_;
  ShardIndex index_;
  /// The files by the names of their tensors.
  std::map<std::string, std::unique_ptr<StreamedFile>> files_;
};

} // namespace accelerate::safetensors
