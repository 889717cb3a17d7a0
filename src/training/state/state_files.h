// SPDX-License-Identifier: Apache-2.0
// The state of objects in the files of a checkpoint.
//
// Tensors are stored in safetensors files, numbers and strings in the manifest.
// Common state has one file `NAME.safetensors` for each object with tensors.
// Each rank's own state is stored separately.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/files/safetensors_index.h"
#include "accelerate/state/state_dict.h"
#include "core/base/internal.h"
#include "core/checkpoint/checkpoint_folder.h"

namespace accelerate {

namespace safetensors {
class StreamedModel;
}

/// One object to save.
struct SavedObject {
  std::string name;
  StateDict state;
  /// Whether each rank has its own state. Slices of tensors always belong to a
  /// rank.
  bool is_per_rank = false;
  /// Other names of tensors, mapped to the names they are stored under. They
  /// are written into the file for other libraries.
  std::map<std::string, std::string> tied = {};
};

/// Writes common state into `folder`, and adds it to the manifest. Does not
/// sync the files to disk. Throws `SystemError`, and `UsageError` on an
/// unsupported dtype.
ACCELERATE_INTERNAL void write_common(
    const std::filesystem::path& folder,
    const std::vector<SavedObject>& objects,
    Manifest& manifest);
/// Writes this rank's own state.
ACCELERATE_INTERNAL void write_rank_shard(
    const std::filesystem::path& folder,
    const std::vector<SavedObject>& objects,
    int rank,
    Manifest manifest);

/// The tensors of a model, in one or more files, written atomically like
/// `safetensors::save_sharded`.
class ModelFiles {
 public:
  /// Starts writing with the tensors of the state that are whole. They are
  /// stored in the given order, which may also contain other names. If it is
  /// empty, they are ordered by name. Throws `SystemError`, and `UsageError` on
  /// an unsupported dtype.
  ModelFiles(
      const std::filesystem::path& folder,
      const SavedObject& model,
      safetensors::SaveOptions options,
      const std::vector<std::string>& order = {});
  ~ModelFiles();

  /// Whether the state has only a slice of the tensor and the whole was not
  /// added yet.
  bool lacks(const std::string& name) const { return lacking_.contains(name); }
  void write(const std::string& name, const at::Tensor& whole);
  /// Renames the files to their final names. Throws `UsageError` if a tensor is
  /// missing.
  void commit();

 private:
  std::unique_ptr<safetensors::StreamedModel> files_;
  std::set<std::string> lacking_;
};

/// States by the name of their object.
using StatesByName = std::map<std::string, StateDict>;

/// Reads state from the mapped files of a checkpoint. Verifies and copies only
/// the bytes that are needed, on all cores.
///
///     StateReader reader(checkpoint);
///     auto states = reader.read(checkpoint.manifest());
///     reader.finish(states);
class ACCELERATE_INTERNAL StateReader {
 public:
  /// The checkpoint must outlive the reader.
  explicit StateReader(const CheckpointReader& checkpoint);
  ~StateReader();
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;

  /// Reads the state of one manifest, with slices as they were saved. Tensors
  /// are in the mapped files and not verified yet. Throws `DataError`.
  StatesByName read(const Manifest& shard);

  /// Returns which elements of an object's tensors are needed (`SliceHolder`).
  /// Empty if the object holds no slices.
  using Needs =
      std::function<std::optional<std::map<std::string, TensorPieces>>(
          const std::string& object,
          const StateDict& saved)>;
  /// Whether all slices have exactly the needed elements. An object that holds
  /// no slices always gets its own slices back, so it fits.
  static bool fits(const StatesByName& states, const Needs& needs);
  /// Adds the needed tensors to `states`: a slice in the required layout, or
  /// the whole tensor. They are assembled from whole tensors in `states` and
  /// from slices in `shards`, the states of all ranks. `finish` fills them.
  /// Throws `DataError` if elements are missing.
  void fit(
      const std::vector<StatesByName>& shards,
      const Needs& needs,
      StatesByName& states);

  /// Verifies every byte that the tensors in `states` come from, then fills the
  /// tensors that `fit` added. Tensors may still be in mapped files, so copy
  /// them. Throws `DataError` if a file is damaged. In this case, do not use
  /// any of the tensors.
  void finish(const StatesByName& states);

 private:
  struct OpenFile;
  /// The position of a tensor's bytes in a file.
  struct Origin {
    size_t file = 0;
    size_t begin = 0;
    size_t size = 0;
  };
  struct PlannedCopy {
    at::Tensor target;
    at::Tensor source;
    /// Offsets and size in bytes.
    size_t to = 0;
    size_t from = 0;
    size_t size = 0;
  };

  void mark(const Origin& origin);
  void mark(const at::Tensor& tensor, size_t begin, size_t size);
  /// Assembles the elements of `target` from sources in other layouts.
  at::Tensor assemble(
      const std::string& object,
      const std::string& name,
      const std::vector<int64_t>& shape,
      const TensorPieces& target,
      const std::vector<TensorSlice>& sources);

  const CheckpointReader& checkpoint_;
  std::vector<OpenFile> files_;
  /// The origin of each tensor's memory, by its address.
  std::unordered_map<const void*, Origin> origin_of_;
  std::vector<PlannedCopy> copies_;
};

} // namespace accelerate
