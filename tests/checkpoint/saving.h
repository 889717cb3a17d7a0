// SPDX-License-Identifier: Apache-2.0
// Small checkpoints for tests.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/atomic_file.h"
#include "core/base/checksum.h"
#include "core/checkpoint/checkpoint_folder.h"

namespace accelerate::testing {

/// The tests have parts of this many ranks.
inline constexpr int kNumRanks = 4;

inline FileRecord write_text(
    const std::filesystem::path& path,
    const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit(false);
  return {text.size(), checksum_of(text)};
}

inline Manifest manifest_of(std::int64_t moment) {
  Manifest manifest;
  manifest.moment = moment;
  manifest.saved_at = moment;
  manifest.world_size = kNumRanks;
  return manifest;
}

/// Each file holds its name and the moment.
inline void write_files(
    const CheckpointWriter& writer,
    const std::vector<std::string>& names,
    Manifest& manifest) {
  for (const auto& name : names) {
    manifest.files[name] = write_text(
        writer.folder() / name, name + std::to_string(manifest.moment));
  }
}

/// By the main process.
inline void save(
    const std::filesystem::path& target,
    std::int64_t moment,
    const std::vector<std::string>& names = {"one", "two"}) {
  CheckpointWriter writer(target, moment);
  auto manifest = manifest_of(moment);
  write_files(writer, names, manifest);
  writer.commit(manifest);
}

/// A rank's manifest, and a file with data that differs between two processes.
inline void
write_shard(const RankShardWriter& shard_writer, int rank, Manifest manifest) {
  const auto name = rank_shard_name(rank, manifest.moment);
  const auto data = name + ".data";
  manifest.state["generator"]["rank"] = rank;
  manifest.files[data] =
      write_text(shard_writer.folder() / data, std::to_string(getpid()));
  write_text(
      shard_writer.folder() / (name + ".json"), format_manifest(manifest));
}

/// By another rank.
inline void
save_rank(const std::filesystem::path& target, std::int64_t moment, int rank) {
  RankShardWriter shard_writer(target, moment, rank);
  write_shard(shard_writer, rank, manifest_of(moment));
  shard_writer.commit();
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

} // namespace accelerate::testing
