// SPDX-License-Identifier: Apache-2.0
// The folder of a checkpoint, which is there whole or not at all.
//
// A new checkpoint is written to a hidden folder beside its own name
// (".NAME.at-SAVE.tmp") and renamed at the end. One that replaces another, or
// joins other files of the user, is written to a hidden folder inside
// (".staged-SAVE"): the new manifest makes it count, and only then do files
// move to their places. A reader finds each file in one of the two.
//
// The main process alone writes there. Every other rank writes its part to a
// folder of its own and renames it when it is finished. Then one of two takes
// it in: the main process, which looks for finished parts before and after the
// checkpoint counts, or the rank, if it finds that the checkpoint counts
// already. Nobody waits. All ranks of a run know the moment and the job, so
// they find each other's folders without a message.
//
// The folder of a rank is also the sign that it has begun to save. A checkpoint
// that counts without the part of such a rank gets a mark in its place, until
// the part is there: if the rank is killed before, it is seen.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "base/unique_file.h"
#include "checkpoint/manifest.h"

namespace accelerate {

/// A checkpoint that is being written. Goes without a trace of its own where
/// `commit` was not called. Throws `SystemError`.
class ACCELERATE_API CheckpointWriter {
 public:
  /// For the main process. Removes leftovers of killed runs.
  CheckpointWriter(
      const std::filesystem::path& target,
      std::int64_t moment,
      const std::string& job = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Where files are to be written, under their final names.
  const std::filesystem::path& folder() const { return stage_; }
  /// Brings its files to the disk and makes it the checkpoint. Files of the one
  /// before that do not belong to it are removed; files that it never listed
  /// stay.
  void commit(Manifest manifest);

 private:
  void commit_inside(Manifest& manifest);
  /// Marks those that are not finished. Returns the ranks that have begun,
  /// those given among them.
  std::set<int> take_in_parts(
      const Manifest& manifest,
      const std::filesystem::path& folder,
      std::set<int> begun) const;
  void remove_old_parts() const;

  std::filesystem::path target_;
  std::filesystem::path stage_;
  std::int64_t moment_;
  std::string job_;
  std::string save_;
  /// Of the stage; nothing where the file system has no locks.
  UniqueFile lock_;
  bool is_committed_ = false;
};

/// The part of another rank, which is written before, while or after the main
/// process saves. If `commit` was not called, only the sign stays that the rank
/// had begun. Throws `SystemError`.
class ACCELERATE_API RankPlace {
 public:
  /// `is_of_all`: the main process commits after all ranks, so a checkpoint of
  /// this save that counts already is an older one and stays as it is, and
  /// nothing stays of a part that was not committed.
  RankPlace(
      const std::filesystem::path& target,
      std::int64_t moment,
      int rank,
      const std::string& job = {},
      bool is_of_all = false);
  ~RankPlace();
  RankPlace(const RankPlace&) = delete;
  RankPlace& operator=(const RankPlace&) = delete;

  /// Where the rank writes its files, under their final names.
  const std::filesystem::path& folder() const { return folder_; }
  /// Brings its files to the disk and hands them to the checkpoint.
  void commit();

 private:
  void remove_late_part() const;

  std::filesystem::path target_;
  std::filesystem::path folder_;
  std::int64_t moment_;
  int rank_;
  std::string job_;
  std::string save_;
  bool is_of_all_;
  bool is_committed_ = false;
  UniqueFile lock_;
};

/// Of a file as it is. Throws `SystemError`.
ACCELERATE_API FileRecord record_of(const std::filesystem::path& file);

/// A checkpoint as it lies on the disk.
class ACCELERATE_API CheckpointReader {
 public:
  /// Reads the manifest and looks at the sizes of all files. Throws `DataError`
  /// where something is damaged, `SystemError` where there is none.
  explicit CheckpointReader(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  /// A rank's part of this moment and job, or nothing. Throws `DataError` if it
  /// is damaged.
  std::optional<Manifest> rank_part(int rank) const;
  /// Throws `DataError` if a rank's part is missing that belongs to it: all
  /// ranks saved together, or the rank had begun to save.
  void check_parts() const;
  /// A file of one of the parts. Throws `DataError` where it is no plain file
  /// of the size that was written.
  std::filesystem::path find(const std::string& name, const FileRecord& record)
      const;
  /// Throws `DataError` where the bytes of the file are others than those that
  /// were written. Uses all cores.
  void check(
      const std::string& name,
      const FileRecord& record,
      std::span<const std::byte> bytes) const;
  /// The same for one chunk of the file, whose bytes are all given.
  void check_chunk(
      const std::string& name,
      const FileRecord& record,
      std::span<const std::byte> bytes,
      std::size_t chunk) const;
  /// Looks at every byte, of the ranks' parts too. Throws `DataError`.
  void verify() const;

 private:
  std::filesystem::path path_of(const std::string& name) const;

  std::filesystem::path folder_;
  Manifest manifest_;
};

/// Calls `read` with the checkpoint, and once more where another process has
/// replaced it meanwhile. Throws what `read` throws.
ACCELERATE_API void read_checkpoint(
    const std::filesystem::path& folder,
    const std::function<void(const CheckpointReader& checkpoint)>& read);

/// Whether there is a manifest in the folder.
ACCELERATE_API bool is_checkpoint(const std::filesystem::path& folder);
/// The error for a folder that does not exist: names some of the folders
/// beside it for which `is_one` is true, or says what to do.
ACCELERATE_API std::string describe_missing_checkpoint(
    const std::filesystem::path& folder,
    const std::function<bool(const std::filesystem::path&)>& is_one);
/// Whether parts of ranks are there: with no manifest it was one.
ACCELERATE_API bool has_rank_parts(const std::filesystem::path& folder);
/// Takes one away; never half of it under its name.
ACCELERATE_API void remove_checkpoint(const std::filesystem::path& folder);

} // namespace accelerate
