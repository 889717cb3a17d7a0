// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders, which appear atomically.
//
// A new checkpoint is written to a hidden folder next to its final name
// (".NAME.at-SAVE.tmp") and renamed at the end. A checkpoint that replaces
// another, or shares a folder with user files, is written to a hidden subfolder
// (".staged-SAVE"). The new manifest commits it, and only then do files move to
// the checkpoint's folder. A reader finds each file in one of the two folders.
//
// Only the main process writes there. Every other rank writes its part to its
// own folder and renames it when it is finished. The part is then merged by one
// of two processes: the main process, which looks for finished parts before and
// after its commit, or the rank, if it finds the checkpoint already committed.
// Neither waits. All ranks of a run know the moment (`Manifest::moment`) and
// the job, so they find each other's folders without communication.
//
// The folder of a rank also shows that the rank has begun to save. A checkpoint
// that is committed without the part of such a rank contains a mark until the
// part is added. If the rank is killed before that, readers see the mark.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/internal.h"
#include "core/base/unique_file.h"
#include "core/checkpoint/manifest.h"

namespace accelerate {

/// Writes a checkpoint. Leaves no files if `commit` was not called. Throws
/// `SystemError`.
class ACCELERATE_INTERNAL CheckpointWriter {
 public:
  /// Prepares a save by the main process. Removes leftovers of killed runs.
  CheckpointWriter(
      const std::filesystem::path& target,
      std::int64_t moment,
      const std::string& job = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Write files here, under their final names.
  const std::filesystem::path& folder() const { return stage_; }
  /// Syncs the files to disk and commits the checkpoint. Removes files of the
  /// previous checkpoint that do not belong to this one. Other files are kept.
  void commit(Manifest manifest);

 private:
  void commit_inside(Manifest& manifest);
  /// Merges the finished parts of ranks into `folder`, and marks the parts that
  /// are not finished. Returns the ranks that have begun, including `begun`.
  std::set<int> merge_shards(
      const Manifest& manifest,
      const std::filesystem::path& folder,
      std::set<int> begun) const;
  void remove_old_shards() const;

  std::filesystem::path target_;
  std::filesystem::path stage_;
  std::int64_t moment_;
  std::string job_;
  std::string save_;
  /// The lock on the stage. Empty if the file system does not support locks.
  UniqueFile lock_;
  bool is_committed_ = false;
};

/// Writes the part of a rank other than the main process, before, while or
/// after the main process saves. Without `commit`, only a sign that the rank
/// had begun remains: its empty folder, or a mark. Throws `SystemError`.
class ACCELERATE_INTERNAL RankShardWriter {
 public:
  /// `is_of_all` means that the main process commits after all ranks. A
  /// checkpoint of this save that is already committed is then an older one and
  /// stays unchanged, and an uncommitted part leaves no sign.
  RankShardWriter(
      const std::filesystem::path& target,
      std::int64_t moment,
      int rank,
      const std::string& job = {},
      bool is_of_all = false);
  ~RankShardWriter();
  RankShardWriter(const RankShardWriter&) = delete;
  RankShardWriter& operator=(const RankShardWriter&) = delete;

  /// The rank writes files here, under their final names.
  const std::filesystem::path& folder() const { return folder_; }
  /// Syncs the files to disk and adds them to the checkpoint.
  void commit();

 private:
  void remove_late_shard() const;

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

/// Reads the size and the checksums of a file. Throws `SystemError`.
ACCELERATE_INTERNAL FileRecord record_of(const std::filesystem::path& file);

/// A checkpoint on disk.
class ACCELERATE_INTERNAL CheckpointReader {
 public:
  /// Reads the manifest and checks the sizes of all files. Throws `DataError`
  /// if something is damaged, `SystemError` if there is no checkpoint.
  explicit CheckpointReader(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  /// The manifest of a rank's part with the same moment and job. Empty if there
  /// is none. Throws `DataError` if it is damaged.
  std::optional<Manifest> rank_shard(int rank) const;
  /// Throws `DataError` if a rank's part is missing although all ranks saved
  /// together, or the rank had begun to save.
  void check_shards() const;
  /// The path of a file of the checkpoint or of a rank's part. Throws
  /// `DataError` if it is not a regular file of the recorded size.
  std::filesystem::path find(const std::string& name, const FileRecord& record)
      const;
  /// Throws `DataError` if the bytes of the file have changed. Uses all cores.
  void check(
      const std::string& name,
      const FileRecord& record,
      std::span<const std::byte> bytes) const;
  /// Like `check`, but for one chunk. `bytes` are those of the whole file.
  void check_chunk(
      const std::string& name,
      const FileRecord& record,
      std::span<const std::byte> bytes,
      std::size_t chunk) const;
  /// Checks every byte, including the ranks' parts. Throws `DataError`.
  void verify() const;

 private:
  std::filesystem::path path_of(const std::string& name) const;

  std::filesystem::path folder_;
  Manifest manifest_;
};

/// Calls `read` with the checkpoint. Calls it again if another process replaces
/// the checkpoint meanwhile. Throws the same errors as `read`.
ACCELERATE_INTERNAL void read_checkpoint(
    const std::filesystem::path& folder,
    const std::function<void(const CheckpointReader& checkpoint)>& read);

/// Whether the folder contains a manifest.
ACCELERATE_INTERNAL bool is_checkpoint(const std::filesystem::path& folder);
/// The error message for a folder that does not exist. It lists some sibling
/// folders for which `is_one` is true, or says what to do.
ACCELERATE_INTERNAL std::string describe_missing_checkpoint(
    const std::filesystem::path& folder,
    const std::function<bool(const std::filesystem::path&)>& is_one);
/// Whether the folder contains parts of ranks. If so, it was a checkpoint even
/// if it has no manifest.
ACCELERATE_INTERNAL bool has_rank_shards(const std::filesystem::path& folder);
/// Removes a checkpoint atomically.
ACCELERATE_INTERNAL void remove_checkpoint(const std::filesystem::path& folder);

} // namespace accelerate
