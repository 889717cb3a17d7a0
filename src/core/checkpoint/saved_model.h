// SPDX-License-Identifier: Apache-2.0
// The weights of a model in a checkpoint, assembled from all ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "accelerate/distributed/tensor_pieces.h"
#include "accelerate/safetensors.h"
#include "core/base/internal.h"
#include "core/checkpoint/checkpoint_folder.h"

namespace accelerate {

/// The common tensors and the slices of all ranks, in mapped files: nothing is
/// copied before it is written.
class ACCELERATE_INTERNAL SavedModel {
 public:
  /// Names of the models: "model", "model_1" and so on, in this order.
  static std::vector<std::string> names_in(const CheckpointReader& checkpoint);

  /// Verifies the checksum of every file used. Throws `DataError` if something
  /// is damaged, or part of a tensor is missing.
  SavedModel(const CheckpointReader& checkpoint, const std::string& name);

  const std::string& name() const { return name_; }
  std::size_t num_tensors() const { return tensors_.size(); }
  std::size_t num_files() const { return files_.size(); }
  /// Writes the whole model into one file, as `save_model` would. Throws
  /// `SystemError`.
  void write(const std::filesystem::path& target) const;

 private:
  struct Source {
    TensorPieces pieces;
    safetensors::TensorView view;
  };
  struct Tensor {
    safetensors::Dtype dtype = safetensors::Dtype::kF32;
    std::vector<std::int64_t> shape;
    /// The sources of all ranks. Replicas have the same slices.
    std::vector<Source> sources;

    /// Calls `copy` for each range of elements with its source. Returns the
    /// number of elements without a source.
    using Copy = std::function<void(
        std::int64_t in_tensor,
        const Source& source,
        std::int64_t in_source,
        std::int64_t count)>;
    std::int64_t assemble(const Copy& copy) const;
  };

  const safetensors::File& open(
      const CheckpointReader& checkpoint,
      const std::string& name,
      const FileRecord& record);
  void add_slices(const CheckpointReader& checkpoint, const Manifest& shard);
  void check_whole(
      const CheckpointReader& checkpoint,
      const std::string& missing_ranks) const;

  std::string name_;
  std::vector<safetensors::File> files_;
  safetensors::Metadata metadata_;
  std::map<std::string, Tensor> tensors_;
};

} // namespace accelerate
