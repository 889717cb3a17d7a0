// SPDX-License-Identifier: Apache-2.0
// Reads, splits and merges models that consist of several safetensors files.
//
// The layout is Hugging Face's: `model.safetensors`, or
// `model-00001-of-00003.safetensors` and so on, with a
// `model.safetensors.index.json` that maps tensors to files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/safetensors.h"

namespace accelerate::safetensors {

inline constexpr const char* kWeightsName = "model.safetensors";
inline constexpr const char* kIndexName = "model.safetensors.index.json";

/// The content of an index file.
struct ShardIndex {
  /// The size of all tensors in bytes, without headers. Empty if the file does
  /// not contain it.
  std::optional<std::uint64_t> total_size = {};
  /// Maps tensor names to the names of files in the same folder.
  std::map<std::string, std::string> weight_map = {};

  bool operator==(const ShardIndex&) const = default;
};

/// Parses an index. Unknown keys are ignored. Throws `InvalidIndexError` if the
/// text is not JSON, is longer than 100 MB or nested too deeply, if
/// `weight_map` is missing, if a tensor is duplicated, or if a file name points
/// outside the folder.
ACCELERATE_API ShardIndex
parse_index(std::string_view text, const std::string& source);

/// Reads an index file. Throws the same errors as `parse_index`, and
/// `SystemError` if the file cannot be read.
ACCELERATE_API ShardIndex read_index(const std::filesystem::path& path);

/// Returns the text of an index as Hugging Face Accelerate writes it:
/// `metadata` and `weight_map`, indented by 2, with sorted keys, escaped
/// non-ASCII characters and one newline at the end.
ACCELERATE_API std::string format_index(const ShardIndex& index);

/// Converts a size such as "10GB" or "1.5 MB" (powers of ten, as in Hugging
/// Face Hub), "5GiB" (powers of two) or "1000" (bytes) to bytes. Case is
/// ignored. Throws `ConfigError`.
ACCELERATE_API std::uint64_t parse_size(std::string_view text);

/// One file of a model to be written.
struct Shard {
  std::string file_name = {};
  std::vector<TensorView> tensors = {};
};

struct ShardPlan {
  std::vector<Shard> shards = {};
  ShardIndex index = {};
  /// Whether the files need an index.
  bool is_sharded() const { return shards.size() > 1; }
};

/// Splits tensors, in the given order, as Hugging Face Hub does. A file is
/// complete if the next tensor would make it larger than `max_shard_bytes`. A
/// tensor that is larger than this limit gets its own file. Always returns at
/// least one file. (The Hub keeps all tensors without elements together,
/// because they share one storage in torch. Here, they stay in the given
/// order.)
ACCELERATE_API ShardPlan split_into_shards(
    std::span<const TensorView> tensors,
    std::uint64_t max_shard_bytes);

struct SaveOptions {
  /// The maximum size of one file. `parse_size` converts strings such as
  /// "10GB".
  std::uint64_t max_shard_bytes = 10'000'000'000;
  /// The metadata of every file, as in `WriteOptions`.
  Metadata metadata = {{"format", "pt"}};
  bool sync = true;
};

/// Writes a model to a folder, which is created if it is missing. Writes the
/// files first, then the index, and finally removes weights of an earlier save
/// that are not part of this one. Returns the names of the written files, with
/// the index last. Throws the same errors as `write_file`.
ACCELERATE_API std::vector<std::string> save_sharded(
    const std::filesystem::path& folder,
    std::span<const TensorView> tensors,
    const SaveOptions& options = {});

/// The weights of a model, in one or more files. Copies share the mappings.
/// Views are valid as long as any copy exists.
class ACCELERATE_API Checkpoint {
 public:
  /// `path` is a safetensors file, an index or a folder. In a folder, reads
  /// `model.safetensors`, or else `model.safetensors.index.json`, or else the
  /// only file that is an index or a safetensors file. Throws `SystemError` if
  /// it finds none of these, `InvalidIndexError` if a file in the index is
  /// missing or lacks a tensor, and the same errors as `File`.
  explicit Checkpoint(const std::filesystem::path& path);

  /// The files, sorted by name.
  const std::vector<File>& files() const { return files_; }
  /// All tensors, file by file, in the order in which each file stores their
  /// data. With an index, only the tensors that it lists.
  std::vector<TensorView> tensors() const;
  bool contains(const std::string& name) const;
  /// Throws `TensorNotFoundError` if there is no such tensor.
  const TensorView& tensor(const std::string& name) const;

 private:
  void open_index(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<File> files_;
  /// Maps tensor names to indices in `files_`.
  std::map<std::string, std::size_t> file_of_;
};

/// Merges the files of a model into one file, `target`, without changing any
/// data. Metadata comes from the files. If they differ, the first file takes
/// precedence.
ACCELERATE_API void merge(
    const Checkpoint& source,
    const std::filesystem::path& target,
    bool sync = true);

} // namespace accelerate::safetensors
