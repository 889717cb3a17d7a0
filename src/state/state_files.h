// SPDX-License-Identifier: Apache-2.0
// States of objects in the files of a checkpoint.
//
// Tensors go into safetensors files, numbers and texts into the manifest. What
// all ranks have in common is in the main part, `NAME.safetensors` for each
// object that has tensors; what a rank has for itself is in its own part.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
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

/// The states of one part by the names of their objects. Tensors lie in the
/// mapped files: copy them. Throws `DataError`.
using StatesByName = std::map<std::string, StateDict>;
ACCELERATE_API StatesByName
read_states(const CheckpointReader& checkpoint, const Manifest& part);
/// Puts whole tensors into `states` where `parts`, of all ranks, hold slices of
/// them. Throws `DataError` where something of a tensor is missing.
ACCELERATE_API void join_slices(
    const std::vector<StatesByName>& parts,
    StatesByName& states);

} // namespace accelerate
