// SPDX-License-Identifier: Apache-2.0
// States of objects in the files of a checkpoint.
//
// Tensors go into safetensors files, numbers and texts into the manifest. What
// all ranks have in common is in the main part, `NAME.safetensors` for each
// object that has tensors; what a rank has for itself is in its own part.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/safetensors_index.h"
#include "accelerate/state_dict.h"
#include "checkpoint/checkpoint_folder.h"

namespace accelerate {

namespace safetensors {
class StreamedModel;
}

/// One object that is saved.
struct SavedObject {
  std::string name;
  StateDict state;
  /// Whether each rank has a state of its own. Slices of tensors are a rank's
  /// in any case.
  bool is_per_rank = false;
  /// Names under which a tensor of the state is known too, and its name there;
  /// written into the file, where other libraries look for it.
  std::map<std::string, std::string> tied = {};
};

/// Writes what is common to all ranks into `folder`, and adds it to the
/// manifest. The files are not brought to the disk yet. Throws `SystemError`,
/// and `UsageError` on a dtype that files have no name for.
ACCELERATE_API void write_common(
    const std::filesystem::path& folder,
    const std::vector<SavedObject>& objects,
    Manifest& manifest);
/// Writes what is this rank's own.
ACCELERATE_API void write_rank_part(
    const std::filesystem::path& folder,
    const std::vector<SavedObject>& objects,
    int rank,
    Manifest manifest);

/// The tensors of a model, in one file or several, as
/// `safetensors::save_sharded` writes them, all or nothing.
class ACCELERATE_API ModelFiles {
 public:
  /// Begins them, with those of the state that are whole. They lie in the order
  /// given, which may list other names too, or else in that of their names.
  /// Throws `SystemError`, and `UsageError` on a dtype that files have no name
  /// for.
  ModelFiles(
      const std::filesystem::path& folder,
      const SavedObject& model,
      safetensors::SaveOptions options,
      const std::vector<std::string>& order = {});
  ~ModelFiles();

  /// Whether the state has a slice of it alone, which has not come whole yet.
  bool lacks(const std::string& name) const { return lacking_.contains(name); }
  void write(const std::string& name, const at::Tensor& whole);
  /// Gives the files their names. Throws `UsageError` where one is lacking.
  void commit();

 private:
  std::unique_ptr<safetensors::StreamedModel> files_;
  std::set<std::string> lacking_;
};

/// By the names of objects.
using StatesByName = std::map<std::string, StateDict>;

/// Reads states from the mapped files of a checkpoint. Verifies and copies only
/// the bytes that the program needs, on all cores.
///
///     StateReader reader(checkpoint);
///     auto states = reader.read(checkpoint.manifest());
///     reader.finish(states);
class ACCELERATE_API StateReader {
 public:
  /// The checkpoint must outlive the reader.
  explicit StateReader(const CheckpointReader& checkpoint);
  ~StateReader();
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;

  /// The states in one part, with slices as they were saved. Tensors lie in the
  /// mapped files, and nothing is verified yet. Throws `DataError`.
  StatesByName read(const Manifest& part);

  /// Which elements are needed of the tensors of an object (`SliceHolder`);
  /// nothing if it does not hold slices.
  using Needs =
      std::function<std::optional<std::map<std::string, TensorPieces>>(
          const std::string& object,
          const StateDict& saved)>;
  /// Whether all slices are those that are needed. Slices of objects that hold
  /// none are what they saved themselves.
  static bool fits(const StatesByName& states, const Needs& needs);
  /// Puts what is needed into `states`, of whole tensors there and of slices in
  /// `parts`, the states of all ranks: a slice in the layout that is needed, or
  /// the whole tensor. `finish` fills them. Throws `DataError` if elements are
  /// missing.
  void fit(
      const std::vector<StatesByName>& parts,
      const Needs& needs,
      StatesByName& states);

  /// Verifies every byte that the tensors in `states` come from, then fills
  /// those that `fit` made. Tensors may still lie in mapped files: copy them.
  /// Throws `DataError` if a file is damaged: use nothing of it then.
  void finish(const StatesByName& states);

 private:
  struct OpenFile;
  /// Where the bytes of a tensor lie in a file.
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
  /// The elements of `target` from sources in other layouts.
  at::Tensor assemble(
      const std::string& object,
      const std::string& name,
      const std::vector<int64_t>& shape,
      const TensorPieces& target,
      const std::vector<TensorSlice>& sources);

  const CheckpointReader& checkpoint_;
  std::vector<OpenFile> files_;
  /// By the memory of a tensor.
  std::unordered_map<const void*, Origin> origin_of_;
  std::vector<PlannedCopy> copies_;
};

} // namespace accelerate
