// SPDX-License-Identifier: Apache-2.0
// State dicts: the named tensors, numbers and strings that are needed to
// resume.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "accelerate/distributed/tensor_pieces.h"
#include "accelerate/export.h"

namespace accelerate {

/// The part of a distributed tensor that this rank holds. `values` contains the
/// elements of all pieces, in order, and may have any shape. `whole` is the
/// shape of the full tensor.
///
///     // Elements 18 to 34 of a [7, 5] matrix.
///     using accelerate::flat_range;
///     accelerate::TensorSlice slice{
///         values, {7, 5}, flat_range({7, 5}, 18, 17)};
struct TensorSlice {
  at::Tensor values;
  std::vector<int64_t> whole = {};
  TensorPieces pieces = {};
};

using StateValue =
    std::variant<bool, int64_t, double, std::string, at::Tensor, TensorSlice>;

/// The state of one object (optimizer, scheduler, scaler or loader). It is a
/// plain value, ordered by name. Tensors are shared, not copied. The components
/// of a name are joined by dots. A distributed tensor is stored as a
/// `TensorSlice`.
///
///     accelerate::StateDict state = scheduler.state_dict();
///     const double rate = state.get<double>("last_lr.0");
class ACCELERATE_API StateDict {
 public:
  void set(const std::string& name, bool value);
  /// Throws `UsageError` if an unsigned number does not fit into int64.
  template <std::integral Number>
  void set(const std::string& name, Number value) {
    if (!std::in_range<int64_t>(+value)) {
      throw_too_large(name);
    }
    put(name, static_cast<int64_t>(value));
  }
  void set(const std::string& name, double value);
  void set(const std::string& name, const char* value);
  void set(const std::string& name, std::string value);
  void set(const std::string& name, at::Tensor value);
  /// Throws `UsageError` if a piece is not inside the full tensor, or if the
  /// pieces and `values` have different numbers of elements.
  void set(const std::string& name, TensorSlice value);
  void set(const std::string& name, StateValue value);
  /// Adds everything in `entries`, prefixing each name with `prefix` and a dot.
  void set(const std::string& prefix, const StateDict& entries);

  /// Throws `UsageError` if the name is missing or the value has a different
  /// type. `T` is one of the types of `StateValue`.
  template <class T>
  const T& get(const std::string& name) const;
  /// Returns what `set(prefix, entries)` added. Empty if there are no such
  /// entries.
  StateDict section(const std::string& prefix) const;
  bool contains(const std::string& name) const;

  bool empty() const { return values_.empty(); }
  size_t size() const { return values_.size(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  [[noreturn]] static void throw_too_large(const std::string& name);
  void put(const std::string& name, StateValue value);

  std::map<std::string, StateValue> values_;
};

extern template ACCELERATE_API const bool& StateDict::get(
    const std::string&) const;
extern template ACCELERATE_API const int64_t& StateDict::get(
    const std::string&) const;
extern template ACCELERATE_API const double& StateDict::get(
    const std::string&) const;
extern template ACCELERATE_API const std::string& StateDict::get(
    const std::string&) const;
extern template ACCELERATE_API const at::Tensor& StateDict::get(
    const std::string&) const;
extern template ACCELERATE_API const TensorSlice& StateDict::get(
    const std::string&) const;

/// Writes a state atomically to one safetensors file. Everything except tensors
/// is stored as text in the header. Throws `UsageError` for slices of tensors,
/// undefined tensors, dtypes that the format does not support, and strings that
/// are not UTF-8. Throws `SystemError` if the file cannot be written.
///
///     accelerate::save(scheduler.state_dict(), "scheduler.safetensors");
///     scheduler.load_state_dict(accelerate::load("scheduler.safetensors"));
ACCELERATE_API void save(
    const StateDict& state,
    const std::filesystem::path& file);
/// Reads a file written by `save`. All values are restored bit for bit, and
/// tensors are on the CPU. Throws `SystemError` if the file cannot be read, and
/// `DataError` if it was not written by `save`.
ACCELERATE_API StateDict load(const std::filesystem::path& file);

} // namespace accelerate
