// SPDX-License-Identifier: Apache-2.0
// Folders of torch.distributed.checkpoint: `.metadata`, a pickle that lists the
// parts of tensors with their positions, and `*.distcp` files with a torch.save
// archive per part. Read without Python and without running any code in them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/safetensors.h"
#include "core/base/internal.h"

namespace accelerate::safetensors {

/// Whether the folder looks like a torch.distributed.checkpoint.
ACCELERATE_INTERNAL bool is_distributed_checkpoint(
    const std::filesystem::path& folder);

class ACCELERATE_INTERNAL DistributedCheckpoint {
 public:
  /// Reads and joins all parts in memory, which takes as many bytes as the
  /// tensors. Throws `DataError` if the folder was not written by torch, and
  /// `SystemError` if a file cannot be read.
  explicit DistributedCheckpoint(const std::filesystem::path& folder);
  ~DistributedCheckpoint();
  DistributedCheckpoint(const DistributedCheckpoint&) = delete;
  DistributedCheckpoint& operator=(const DistributedCheckpoint&) = delete;

  /// The tensors. If a single key contains all of them ("model"), their names
  /// do not start with it.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  std::size_t num_files() const { return num_files_; }
  /// The names of entries that are not tensors. These entries are not read.
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  friend class DistributedReader;

  std::vector<std::vector<std::byte>> data_;
  std::vector<TensorView> tensors_;
  std::vector<std::string> left_out_;
  std::size_t num_files_ = 0;
};

} // namespace accelerate::safetensors
