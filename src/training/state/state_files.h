// SPDX-License-Identifier: Apache-2.0
// The state of objects in the files of a checkpoint.
//
// Tensors are stored in safetensors files, numbers and strings in the manifest.
// Common state is in the main part, with a file `NAME.safetensors` per object
// that has tensors; a rank's own state is in its own part.
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
  /// Other names of tensors, mapped to the names they are stored under; written
  /// into the file for other libraries.
  std::map<std::string, std::string> tied = {};
};

/// Writes common state into `folder`, and adds it to the manifest. The files
/// are not synced to disk. Throws `SystemError`, and `UsageError` on an
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

/// The tensors of a model, in one or more files, written atomically as by
/// `safetensors::save_sharded`.
class ACCELERATE_INTERNAL ModelFiles {
 public:
  /// Starts writing, with the tensors of the state that are whole. They are
  /// stored in the given order, which may contain other names too, or else
  /// sorted by name. Throws `SystemError`, and `UsageError` on an unsupported
  /// dtype.
  ModelFiles(
      const std::filesystem::path& folder,
      const SavedObject& model,
      safetensors::SaveOptions options,
      const std::vector<std::string>& order = {});
  ~ModelFiles();

  /// Whether the state only has a slice of it and the whole was not added yet.
  bool lacks(const std::string& name) const { return lacking_.contains(name); }
  void write(const std::string& name, const at::Tensor& whole);
  /// Renames the files to their final names. Throws `UsageError` if a tensor is
  /// missing.
  void commit();

 private:
  std::unique_ptr<safetensors::StreamedModel> files_;
  std::set<std::string> lacking_;
};

/// By object name.
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

  /// The state in one part, with slices as they were saved. Tensors are in the
  /// mapped files and not verified yet. Throws `DataError`.
  StatesByName read(const Manifest& shard);

  /// Which elements of an object's tensors are needed (`SliceHolder`); empty if
  /// the object does not hold slices.
  using Needs =
      std::function<std::optional<std::map<std::string, TensorPieces>>(
          const std::string& object,
          const StateDict& saved)>;
  /// Whether all slices are exactly those that are needed. Slices of objects
  /// that hold none are what they saved themselves.
  static bool fits(const StatesByName& states, const Needs& needs);
  /// Adds what is needed to `states`, from whole tensors there and from slices
  /// in `shards`, the states of all ranks: a slice in the required layout, or
  /// the whole tensor. `finish` fills them. Throws `DataError` if elements are
  /// missing.
  void fit(
      const std::vector<StatesByName>& shards,
      const Needs& needs,
      StatesByName& states);

  /// Verifies every byte that the tensors in `states` come from, then fills
  /// those that `fit` added. Tensors may still be in mapped files: copy them.
  /// Throws `DataError` if a file is damaged; then do not use any of them.
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
    /// In bytes.
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
  /// By the address of a tensor's memory.
  std::unordered_map<const void*, Origin> origin_of_;
  std::vector<PlannedCopy> copies_;
};

} // namespace accelerate
