// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint: its files and its small values, in one text.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// The expected size and checksum of a file in a checkpoint.
struct FileRecord {
  std::uint64_t num_bytes = 0;
  /// The concatenated checksums of all chunks (`ChunkedChecksum`).
  std::string checksum = {};
  /// The number of bytes per chunk. 0 means one checksum of the whole file, as
  /// in format 1.
  std::uint64_t chunk = 0;

  std::size_t num_chunks() const {
    return chunk == 0 ? 1 : num_bytes / chunk + (num_bytes % chunk != 0);
  }
  bool operator==(const FileRecord&) const = default;
};

/// The main part of a checkpoint, or the part of one rank. The text ends with a
/// checksum of itself, which detects truncation and other accidents.
struct ACCELERATE_INTERNAL Manifest {
  /// The number of backward passes that the run had made. It is the same in all
  /// parts.
  std::int64_t moment = 0;
  int world_size = 1;
  /// All parts have the same job. See `job_name.h`. Empty in checkpoints of
  /// version 0.1.
  std::string job = {};
  /// Milliseconds since 1970, by the clock of the rank that wrote it.
  std::int64_t saved_at = 0;
  /// Whether all ranks saved it together, so that a missing part was lost.
  bool is_of_all = false;
  /// Whether every machine has written its own checkpoint, which contains only
  /// the parts of its ranks.
  bool is_of_machine = false;
  /// The version of this library.
  std::string version = {};
  /// The subfolder that still contains some of the files. Empty if all are in
  /// the checkpoint's folder.
  std::string staged = {};
  /// Files of the previous checkpoint, which are removed once the staged files
  /// have been moved.
  std::vector<std::string> replaced = {};
  /// The files by name, in the manifest's folder.
  std::map<std::string, FileRecord> files = {};
  /// The values: object -> name -> value.
  nlohmann::json state = nlohmann::json::object();
};

/// The file name of the main manifest in the checkpoint's folder.
inline constexpr const char* kManifestName = "checkpoint.json";
/// The prefix of the names of a rank's part: "rank_3-at-120". It differs
/// between moments, so that a new part never overwrites an old one.
ACCELERATE_INTERNAL std::string rank_shard_name(int rank, std::int64_t moment);
/// An empty file that marks that a rank has begun to save its part: a
/// checkpoint with the mark but without the part is incomplete.
ACCELERATE_INTERNAL std::string
mark_name(int rank, std::int64_t moment, const std::string& job);

ACCELERATE_INTERNAL std::string format_manifest(const Manifest& manifest);
/// Throws `DataError`, with `source` as the file's name, if the text is damaged
/// or of a newer version, or if names are duplicated or lead out of the folder.
ACCELERATE_INTERNAL Manifest
parse_manifest(std::string_view text, const std::string& source);

} // namespace accelerate
