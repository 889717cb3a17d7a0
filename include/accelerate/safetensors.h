// SPDX-License-Identifier: Apache-2.0
// The safetensors file format, without torch.
//
// A file consists of 8 bytes (the length of the header), a JSON header (name,
// dtype, shape and offsets of every tensor), and the data. Reading maps the
// file and copies nothing. Writing produces the same bytes as the Python
// package `safetensors`. For folders with several files, see
// accelerate/files/safetensors_index.h.
//
//     accelerate::safetensors::File file("model.safetensors");
//     auto weight = file.tensor("lm_head.weight"); // a view into the file
//     std::span<const std::byte> bytes = weight.data;
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/files/safetensors_errors.h"

namespace accelerate::safetensors {

/// Longer headers are rejected, as in the Rust library.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// The element types of the format, in the order in which the format sorts them
/// (by alignment). Data is little-endian and row-major.
enum class Dtype : std::uint8_t {
  kBool,
  kF4,     // Two elements per byte.
  kF6E2M3, // Four elements in three bytes.
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

inline constexpr int kNumDtypes = 22;

/// Returns the name in files: "F32", "F8_E4M3", ...
ACCELERATE_API std::string_view dtype_name(Dtype dtype);
/// Returns the element type with this name. Empty if the name is unknown.
ACCELERATE_API std::optional<Dtype> try_parse_dtype(std::string_view name);
/// Returns the number of bits per element: 4, 6, 8, 16, 32 or 64.
ACCELERATE_API int dtype_bits(Dtype dtype);

/// A named tensor that does not own its bytes. They belong to a mapped file
/// when reading, and to the caller when writing.
///
/// `shape` counts elements, even for types smaller than a byte. (torch's packed
/// `float4_e2m1fn_x2` of shape {2, 3} is F4 of shape {2, 6} here.) `shape` is
/// empty for a scalar.
struct ACCELERATE_API TensorView {
  std::string name = {};
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> data = {};

  /// The number of elements. 1 for a scalar.
  std::int64_t num_elements() const;
};

/// Strings in the header, such as {"format", "pt"}.
using Metadata = std::map<std::string, std::string>;

/// A parsed file in memory. Its tensors are views into the bytes, in order of
/// offset.
struct Contents {
  Metadata metadata = {};
  std::vector<TensorView> tensors = {};
};

/// Parses the bytes of a whole file. Checks, in this order, the length, the
/// size limit, UTF-8, JSON, names, dtypes, and the offsets, shape and size of
/// every tensor. Nothing is used before it is checked. Finally, checks that the
/// tensors cover the file up to the last byte. Throws the matching subclass of
/// `SafetensorsError`, whose message contains `source` as the name of the file.
///
/// Duplicate names are rejected, as the format requires. (The Rust library
/// keeps one of the two.) Unknown fields of a tensor are ignored.
ACCELERATE_API Contents
parse(std::span<const std::byte> bytes, const std::string& source);

/// A mapped file. Copies share the mapping, which exists as long as any copy
/// does. Views are valid as long as the mapping exists. Several threads may
/// read the file.
///
/// Opening a file reads only the header. Data is read from disk when it is
/// accessed. The file must not be truncated while it is mapped: the system
/// kills a process that accesses missing bytes (SIGBUS). `write_file` replaces
/// files instead, so an existing mapping keeps the old bytes.
class ACCELERATE_API File {
 public:
  /// Throws `SystemError` if the file cannot be read, and the same errors as
  /// `parse`.
  explicit File(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  /// The whole mapped file.
  std::span<const std::byte> bytes() const;
  const Metadata& metadata() const;
  /// All tensors, in the order in which the file stores their data.
  const std::vector<TensorView>& tensors() const;
  bool contains(const std::string& name) const;
  /// Throws a `TensorNotFoundError` that names the file and a few tensors in
  /// it.
  const TensorView& tensor(const std::string& name) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

struct WriteOptions {
  /// Strings to write to the header, in the order of their keys. Omitted if
  /// empty.
  Metadata metadata = {};
  /// Whether the bytes are on disk when the call returns, not only in the
  /// system's cache (fsync of the file and its folder). If false, a power
  /// failure (but not a crash of the program) can lose the file.
  bool sync = true;
  /// Called with each piece of the file, in order, while the file is written,
  /// for example to compute a checksum.
  std::function<void(std::span<const std::byte> piece)> written = {};
};

/// Writes a file with the same bytes as `safetensors.serialize_file` for the
/// same content. Tensors are sorted by dtype (widest first), then by name. The
/// header is padded with spaces to a multiple of 8 bytes. (If there are several
/// metadata keys, the Rust library writes them in an arbitrary order. Here,
/// they are sorted.)
///
/// The operation is atomic: the bytes are written to a temporary file in the
/// same folder, which is then renamed to `path`. If anything fails, an existing
/// file is unchanged and the temporary file is removed. Only a crash can leave
/// the temporary file behind (".NAME.*.tmp").
///
/// Throws `SystemError` (for example if the disk is full or the folder is not
/// writable), `DuplicateNameError`, `SizeMismatchError` if data does not match
/// the shape and dtype, `ShapeOverflowError`, `MisalignedTensorError`,
/// `InvalidUtf8Error`, `HeaderTooLargeError`, and `UsageError` for a negative
/// dimension or a tensor named "__metadata__".
///
///     using namespace accelerate;
///     std::vector<float> values(6);
///     const std::vector<safetensors::TensorView> tensors = {
///         {.name = "weight",
///          .dtype = safetensors::Dtype::kF32,
///          .shape = {2, 3},
///          .data = std::as_bytes(std::span(values))}};
///     safetensors::write_file(
///         "model.safetensors", tensors, {.metadata = {{"format", "pt"}}});
ACCELERATE_API void write_file(
    const std::filesystem::path& path,
    std::span<const TensorView> tensors,
    const WriteOptions& options = {});

/// Returns the bytes that `write_file` would write.
ACCELERATE_API std::vector<std::byte> serialize(
    std::span<const TensorView> tensors,
    const Metadata& metadata = {});

} // namespace accelerate::safetensors
