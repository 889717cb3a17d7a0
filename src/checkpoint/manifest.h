// SPDX-License-Identifier: Apache-2.0
// What a checkpoint consists of: its files and its small values, in one text.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"

namespace accelerate {

/// What a file of a checkpoint must be.
struct FileRecord {
  std::uint64_t num_bytes = 0;
  /// The checksums of all chunks, one after the other (`ChunkedChecksum`).
  std::string checksum = {};
  /// Bytes per chunk. 0: one checksum of the whole file, as format 1 has it.
  std::uint64_t chunk = 0;

  std::size_t num_chunks() const {
    return chunk == 0 ? 1 : num_bytes / chunk + (num_bytes % chunk != 0);
  }
  bool operator==(const FileRecord&) const = default;
};

/// The main part of a checkpoint, or what one rank adds to it. The text ends in
/// a checksum of itself, so that no prefix and no other accident passes for it.
struct ACCELERATE_API Manifest {
  /// How many backwards the run had seen: parts of one moment belong together.
  std::int64_t moment = 0;
  int world_size = 1;
  /// Parts of one job belong together; see `job_name.h`. Empty in checkpoints
  /// of version 0.1.
  std::string job = {};
  /// Milliseconds since 1970, by the clock of the rank that wrote it.
  std::int64_t saved_at = 0;
  /// Whether it was saved by all ranks together, so that a rank's part that is
  /// missing was lost.
  bool is_of_all = false;
  /// Whether every machine has written a checkpoint of its own, which holds the
  /// parts of its ranks alone.
  bool is_of_machine = false;
  /// Of this library.
  std::string version = {};
  /// A folder inside that still holds some of the files; empty where all are in
  /// their place.
  std::string staged = {};
  /// Files of the checkpoint before that go once the staged ones are in place.
  std::vector<std::string> replaced = {};
  /// By name, all beside the manifest.
  std::map<std::string, FileRecord> files = {};
  /// Object -> name -> value.
  nlohmann::json state = nlohmann::json::object();
};

/// The main part's, in the checkpoint's folder.
inline constexpr const char* kManifestName = "checkpoint.json";
/// The names of a rank's part begin so: "rank_3-at-120". Those of two moments
/// differ, so that a new one takes nothing from the old.
ACCELERATE_API std::string rank_part_name(int rank, std::int64_t moment);
/// The empty file that says that a rank has begun to save its part: a
/// checkpoint that has the mark but not the part is incomplete.
ACCELERATE_API std::string
mark_name(int rank, std::int64_t moment, const std::string& job);

ACCELERATE_API std::string format_manifest(const Manifest& manifest);
/// Throws `DataError`, with `source` as the file's name: a text that is damaged
/// or of a newer version, names that leave the folder or stand there twice.
ACCELERATE_API Manifest
parse_manifest(std::string_view text, const std::string& source);

} // namespace accelerate
