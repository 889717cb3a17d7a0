// SPDX-License-Identifier: Apache-2.0
// Folders that torch.distributed.checkpoint writes: `.metadata`, a pickle that
// says which parts of which tensors lie where, and `*.distcp` with one archive
// of torch.save for each part. Read without Python, and nothing of them is run.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/safetensors.h"

namespace accelerate::safetensors {

/// Whether the folder says that it is one.
ACCELERATE_API bool is_distributed_checkpoint(
    const std::filesystem::path& folder);

class ACCELERATE_API DistributedCheckpoint {
 public:
  /// Reads and joins all parts, in memory: as many bytes as the tensors take.
  /// Throws `DataError` for what is no such folder, or in a form that torch
  /// does not write, and `SystemError` where a file cannot be read.
  explicit DistributedCheckpoint(const std::filesystem::path& folder);
  ~DistributedCheckpoint();
  DistributedCheckpoint(const DistributedCheckpoint&) = delete;
  DistributedCheckpoint& operator=(const DistributedCheckpoint&) = delete;

  /// By name, without the one key that everything lies under ("model").
  const std::vector<TensorView>& tensors() const { return tensors_; }
  std::size_t num_files() const { return num_files_; }
  /// What is no tensor, and not read.
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  friend class DistributedReader;

  std::vector<std::vector<std::byte>> data_;
  std::vector<TensorView> tensors_;
  std::vector<std::string> left_out_;
  std::size_t num_files_ = 0;
};

} // namespace accelerate::safetensors
